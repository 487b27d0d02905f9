"""What NVML's refusals mean: for one card a fault, for the driver as a whole a reason, words and a remedy."""

from __future__ import annotations

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Fault
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.host import HostTrees


def fault_of(error: NvmlError) -> Fault:
    """A card's fault from a call about it.

    A lost card is drained, not condemned: if it answers again, it is back. (XID 79 asks for the reboot.)
    """
    action = Action.RESET if error.reset_required else Action.DRAIN
    tail = ": the card fell off the bus or cannot be reached" if error.lost else ""
    return Fault(reason=error.name, message=f"{error}{tail}", action=action)


def library_missing(detail: str, host: HostTrees) -> DriverUnavailableError:
    """NVML cannot be loaded; whether that is a fault depends on whether there is a card."""
    cards = host.pci_cards()
    seen = f"{cards} NVIDIA card(s) are plugged in" if cards else "no NVIDIA card is plugged in"
    hint = (
        "let the pod see the driver's libraries (NVIDIA container runtime, or containerDriverRoot), or set nvmlLibrary"
        if cards
        else "on a node without NVIDIA cards this is expected; keep the daemon off it with a node selector"
    )
    return DriverUnavailableError(
        DriverReason.NO_LIBRARY, f"the NVIDIA management library cannot be loaded ({detail}); {seen}", hint=hint
    )


def driver_unavailable(error: NvmlError, host: HostTrees, library_version: str) -> DriverUnavailableError:
    """NVML is loaded and refuses as a whole."""
    kernel = host.kernel_version()
    if error.version_mismatch:
        return DriverUnavailableError(
            DriverReason.VERSION_MISMATCH,
            f"the kernel module is version {kernel or 'unknown'}, the library {library_version or 'unknown'}",
            hint="the driver was replaced while loaded: reload the kernel module or reboot, then restart this pod"
            " if its libraries are still the old ones",
        )
    if error.not_loaded:
        state = f"kernel module {kernel} is loaded but does not answer" if kernel else "no kernel module is loaded"
        return DriverUnavailableError(
            DriverReason.NO_DRIVER,
            f"{error}: {state}; {host.pci_cards()} NVIDIA card(s) are plugged in",
            hint="install or load the NVIDIA driver (modprobe nvidia); it is picked up without a restart",
        )
    if error.no_permission:
        return no_permission(str(error))
    return DriverUnavailableError(DriverReason.FAILED, str(error), hint="look at the kernel log (dmesg) for NVRM lines")


def no_permission(detail: str) -> DriverUnavailableError:
    return DriverUnavailableError(
        DriverReason.NO_PERMISSION,
        f"NVIDIA's device nodes may not be opened ({detail})",
        hint="run the container privileged, or allow it /dev/nvidiactl and /dev/nvidia*",
    )


def no_devices(host: HostTrees) -> DriverUnavailableError:
    return DriverUnavailableError(
        DriverReason.NO_DEVICES,
        f"the driver works and lists no card; {host.pci_cards()} NVIDIA card(s) are plugged in",
        hint="cards that are plugged in and not listed failed to start: look for NVRM lines in dmesg",
    )
