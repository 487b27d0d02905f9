"""A card's health: what it answers, what NVML's refusals mean, and the XIDs that arrive while nobody asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Fault
from hami_plugin.process.log import logger
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import QueriedDevice
from vendors.nvidia.host import HostTrees
from vendors.nvidia.nvml import EventSet, Handle, Nvml, NvmlError, NvmlEvent
from vendors.nvidia.xid import XidPolicy, of_one_instance

_T = TypeVar("_T")

EXCLUSIVE_PROCESS = 3
_EXCLUSIVE, _PROHIBITED = (1, EXCLUSIVE_PROCESS), 2

log = logger(__name__)

# Field 230 of NVML: what the driver asks for. A number that is not here drains the card.
RECOVERY = {
    1: ("a reset of the card", Action.RESET),
    2: ("a reboot of the node", Action.REBOOT),
    3: ("no more peer-to-peer work", Action.DRAIN),
    4: ("draining, then a reset of the card", Action.RESET),
    5: ("recovery of its IMEX domain", Action.DRAIN),
    6: ("a reset of its bus", Action.RESET),
    7: ("a reboot of the system", Action.REBOOT),
}


def examine(
    nvml: Nvml, handle: Handle, *, shared: bool, divisible: bool = False, cut: bool = False, switched: bool = False
) -> Fault | None:
    """Ask everything that has a say; the first fault wins. What a card does not know, or may not tell, is no fault.

    ``shared``: several containers are to use the card at a time. ``divisible``: its MIG instances are served.
    ``cut``: instances are made of it for containers. ``switched``: the daemon switches its MIG mode.
    """
    checks: tuple[Callable[[], Fault | None], ...] = (
        lambda: _recovery(_known(lambda: nvml.recovery_action(handle), 0)),
        lambda: _rows(*_known(lambda: nvml.remapped_rows(handle), (False, False))),
        lambda: _pages(_known(lambda: nvml.retired_pages_pending(handle), False)),
        lambda: _compute_mode(_known(lambda: nvml.compute_mode(handle), 0), shared=shared),
        lambda: None if divisible else _mig(nvml, handle, cut=cut, switched=switched),
    )
    return next((fault for check in checks if (fault := check())), None)


def make_exclusive(nvml: Nvml, handle: Handle) -> Fault | None:
    """Have one process at a time use the card, and say why not where the driver will not have it so.

    The mode lasts until the driver is unloaded, or somebody sets another; so this is asked at each look.
    """
    if _known(lambda: nvml.compute_mode(handle), 0) == EXCLUSIVE_PROCESS:
        return None
    try:
        nvml.set_compute_mode(handle, EXCLUSIVE_PROCESS)
    except NvmlError as error:
        if error.no_permission:
            remedy = "give the daemon CAP_SYS_ADMIN, or run nvidia-smi -c EXCLUSIVE_PROCESS on the node"
        elif error.unsupported:
            remedy = "leave computeMode at Default for this node, or leave the card out with filterDevices"
        else:
            raise
        return Fault(reason="ComputeModeNotSet", message=f"the card cannot be made exclusive: {error}; {remedy}")
    log.info("compute mode set", mode="ExclusiveProcess", card=nvml.uuid(handle))
    return None


def _known(ask: Callable[[], _T], default: _T) -> _T:
    try:
        return ask()
    except NvmlError as error:
        if error.unsupported or error.no_permission:
            return default
        raise


def _recovery(number: int) -> Fault | None:
    if number == 0:
        return None
    wish, action = RECOVERY.get(number, (f"recovery action {number}", Action.DRAIN))
    return Fault(reason="RecoveryAction", message=f"the driver asks for {wish}", action=action)


def _rows(pending: bool, failed: bool) -> Fault | None:
    if failed:
        return Fault(reason="RowRemapFailed", message="a bad memory row could not be replaced", action=Action.RESET)
    if pending:
        return Fault(
            reason="RowRemapPending", message="bad memory rows are replaced at the next reset", action=Action.RESET
        )
    return None


def _pages(pending: bool) -> Fault | None:
    if not pending:
        return None
    return Fault(
        reason="PageRetirementPending", message="bad memory pages are retired at the next reset", action=Action.RESET
    )


def _compute_mode(mode: int, *, shared: bool) -> Fault | None:
    remedy = "switch it back with nvidia-smi -c DEFAULT"
    if mode == _PROHIBITED:
        return Fault(reason="ProhibitedComputeMode", message=f"compute mode prohibits all work; {remedy}")
    if mode in _EXCLUSIVE and shared:
        return Fault(
            reason="ExclusiveComputeMode",
            message=f"compute mode allows one process, so the card cannot be shared; {remedy},"
            " or set deviceSplitCount to 1",
        )
    return None


_SWITCHED = "; the daemon switches MIG %s once the card is idle: hami-plugin partitions says what it waits for"


def _mig(nvml: Nvml, handle: Handle, *, cut: bool, switched: bool) -> Fault | None:
    if _known(lambda: nvml.mig_enabled(handle), False) == cut:
        return None
    if cut:
        remedy = _SWITCHED % "on" if switched else "; switch MIG on with nvidia-smi -mig 1, or set migMode: enabled"
        message = f"the card is not in MIG mode, and operatingMode is mig{remedy}"
        return Fault(reason="MigDisabled", message=message)
    if switched:
        message = f"the card is in MIG mode, and migMode is disabled{_SWITCHED % 'off'}"
        return Fault(reason="MigEnabled", message=message)
    return Fault(
        reason="MigEnabled",
        message="the card is in MIG mode, where it cannot be used whole; set migStrategy to mixed or single to serve"
        " its instances, switch MIG off with nvidia-smi -mig 0, or leave the card out with filterDevices",
    )


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


# Events that are fetched in one poll at most: a storm is delivered in pieces.
MAX_EVENTS = 256


class EventWatch:
    """The event set of one open driver, and the cards that are registered with it.

    ``concerned`` are the UUIDs of a card's devices, itself or its instances, given its UUID, and the GPU and the
    compute instance that an event names, if it does. ``driver_gone``: the last wait has shown that no call at all can
    work before the driver is opened anew.
    """

    def __init__(
        self,
        nvml: Nvml,
        policy: XidPolicy,
        busy: QueriedDevice,
        *,
        concerned: Callable[[str, int | None, int | None], Sequence[str]] = lambda card, _gi, _ci: (card,),
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._policy = policy
        self._busy = busy
        self._concerned = concerned
        self._sleep, self._clock = sleep, clock
        self._events: EventSet | None = None
        self._handles: dict[str, Handle] = {}
        self._silent: set[str] = set()
        self._backlog: tuple[HealthEvent, ...] = ()
        self._complaint = ""
        self.driver_gone = False

    def watch(self, handles: Mapping[str, Handle], well: Collection[str]) -> Mapping[str, Fault]:
        """Watch the ``well`` ones among the cards that answer, and answer the faults of those that cannot be.

        A card that is watched already stays so while it answers. One that does not is let go of, since it may fail
        the wait for all; NVML can only do that by starting over, so what has arrived is fetched first.
        """
        self.driver_gone = False
        if self._policy.silent:
            return {}
        address = self._nvml.address
        if any(u not in handles or address(handles[u]) != address(h) for u, h in self._handles.items()):
            self.suspend()
        faults = {}
        for uuid, handle in handles.items():
            if uuid in well and uuid not in self._handles and uuid not in self._silent:
                with self._busy.asking(uuid):
                    fault = self._register(uuid, handle)
                if fault:
                    faults[uuid] = fault
        return faults

    def _register(self, uuid: str, handle: Handle) -> Fault | None:
        try:
            if self._events is None:
                self._events = self._nvml.event_set()
            if self._nvml.watch_xids(handle, self._events):
                self._handles[uuid] = handle
            else:
                self._silent.add(uuid)
        except NvmlError as error:
            if error.driver_gone:
                raise
            if not error.unsupported:
                return fault_of(error)
            self._silent.add(uuid)
        return None

    def poll(self, timeout: float) -> tuple[HealthEvent, ...]:
        """Wait up to ``timeout`` seconds, and never return empty-handed much earlier."""
        start = self._clock()
        backlog, self._backlog = self._backlog, ()
        found = backlog + self._fetch(0 if backlog else timeout)
        if not found:
            self._sleep(max(0.0, timeout - (self._clock() - start)))
        return found

    def _fetch(self, timeout: float) -> tuple[HealthEvent, ...]:
        if self._events is None or not self._handles:
            return ()
        found: dict[HealthEvent, None] = {}
        milliseconds = max(0, int(timeout * 1000))
        try:
            for _ in range(MAX_EVENTS):
                event = self._nvml.wait(self._events, milliseconds)
                milliseconds = 0
                found |= dict.fromkeys(self._judge(event))
        except NvmlError as error:
            if not error.timeout:
                found |= dict.fromkeys(self._wait_failed(error))
        return tuple(found)

    def _judge(self, event: NvmlEvent) -> tuple[HealthEvent, ...]:
        """What an event says of its card, or of those of its instances that it is about."""
        if event.xid is None:
            return ()
        uuid = next((u for u, h in self._handles.items() if self._nvml.address(h) == event.address), None)
        contained = of_one_instance(event.xid) and (event.gi is not None or event.ci is not None)
        fault = self._policy.fault(event.xid, contained=contained)
        if fault is None and uuid is not None:
            fault = self._policy.of_application(event.xid)
        if fault is None:
            log.debug("xid ignored", device=uuid, xid=event.xid)
            return ()
        if uuid is None:
            log.warning("xid of an unknown card", xid=event.xid)
            return self._about(self._lost())
        named = (event.gi, event.ci) if contained else (None, None)
        return tuple(HealthEvent(uuid=one, fault=fault) for one in self._concerned(uuid, *named))

    def _wait_failed(self, error: NvmlError) -> tuple[HealthEvent, ...]:
        """The wait fails for all when one card is gone. Find that one, and wait on without it."""
        if error.driver_gone:
            self.close()
            self.driver_gone = True
            return ()
        if self._complaint != error.name:
            self._complaint = error.name
            log.warning("waiting for events failed", error=str(error))
        lost = self._lost()
        left = {u: h for u, h in self._handles.items() if u not in lost}
        self.close()
        with suppress(NvmlError):  # the next look registers what could not be registered now
            self.watch(left, left)
        return self._about(lost)

    def _lost(self) -> Mapping[str, Fault]:
        """The cards that do not answer any more."""
        found = {}
        for uuid, handle in self._handles.items():
            with self._busy.asking(uuid):
                try:
                    self._nvml.uuid(handle)
                    self._nvml.memory(handle)
                except NvmlError as error:
                    if not error.driver_gone and not error.unsupported:
                        found[uuid] = fault_of(error)
        return found

    def _about(self, lost: Mapping[str, Fault]) -> tuple[HealthEvent, ...]:
        """Each device of the cards that were asked in vain."""
        return tuple(
            HealthEvent(uuid=uuid, fault=fault, confirmed=True)
            for card, fault in lost.items()
            for uuid in self._concerned(card, None, None)
        )

    def suspend(self) -> None:
        """Let go of all registrations, but keep what has arrived for the next poll."""
        self._backlog += self._fetch(0)
        self.close()

    def close(self) -> None:
        """Let go of the event set and of all registrations."""
        events, self._events = self._events, None
        self._handles.clear()
        self._silent.clear()
        if events is not None:
            with suppress(NvmlError):
                self._nvml.free(events)
