"""What the kernel's file trees say of NVIDIA cards and MIG instances, without asking the driver library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.model.device import Device

FAMILY = "NVIDIA"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""Opens nothing, and adds nothing, in a container of NVIDIA's own runtime."""
UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")
_VENDOR_ID = "0x10de"
_DISPLAY_CLASS = "0x03"


def pci_address(bus_id: str) -> str:
    """NVML's ``00000000:0A:00.0`` as sysfs writes it, ``0000:0a:00.0``. A wider domain keeps its digits."""
    domain, colon, rest = bus_id.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if colon else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrees:
    """The ``/sys`` and ``/proc`` trees of the node, wherever this process sees them."""

    sysfs: Path
    proc: Path

    def kernel_version(self) -> str:
        """Version of the loaded kernel module; empty when none is loaded."""
        text = _read(self.proc / "driver/nvidia/version")
        match = _VERSION.search(text.partition("\n")[0])
        return match.group() if match else ""

    def signature(self) -> tuple[str, ...]:
        """The kernel module's version and its cards' addresses: another one means another driver or other cards."""
        return (self.kernel_version(), *sorted(folder.name for folder in self._folders()))

    def cards(self) -> tuple[Device, ...]:
        """The cards that the kernel module lists, in PCI order, which is NVML's. Their memory is not known here."""
        found = (_card(index, _read(folder / "information")) for index, folder in enumerate(sorted(self._folders())))
        return tuple(card for card in found if card is not None)

    def _folders(self) -> Iterator[Path]:
        return (self.proc / "driver/nvidia/gpus").glob("*")

    def numa_node(self, pci: str) -> int | None:
        """The NUMA node of a PCI address; None when the kernel does not know one."""
        text = _read(self.sysfs / "bus/pci/devices" / pci / "numa_node").strip()
        return int(text) if text.isdecimal() else None

    def present(self) -> bool:
        """Whether there is anything of NVIDIA's. Boards without a PCI bus have the kernel module only."""
        return self.pci_cards() > 0 or bool(self.kernel_version())

    def pci_cards(self) -> int:
        """How many NVIDIA display devices are plugged in, whatever drives them."""
        return sum(
            _read(folder / "vendor").strip() == _VENDOR_ID and _read(folder / "class").startswith(_DISPLAY_CLASS)
            for folder in (self.sysfs / "bus/pci/devices").glob("*")
        )


def _card(index: int, information: str) -> Device | None:
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in information.splitlines())
    }
    uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
    if not UUID.fullmatch(uuid):
        return None
    return Device(
        uuid=uuid,
        family=FAMILY,
        index=index,
        model=fields.get("Model", ""),
        memory=0,
        minor=int(minor) if minor.isdecimal() else None,
        pci=pci_address(fields.get("Bus Location", "")),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CAPABILITIES = "driver/nvidia-caps/mig-minors"
CAPABILITY_NODES = "nvidia-caps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Minor numbers by the names of the kernel's list, such as ``gpu0/gi1/access``."""

    minors: dict[str, int]

    def nodes(self, card: int, gi: int, ci: int) -> tuple[str, ...]:
        """The two nodes of an instance, below ``/dev``; none if one is not listed. ``card`` is a minor number."""
        names = (f"gpu{card}/gi{gi}/access", f"gpu{card}/gi{gi}/ci{ci}/access")
        if any(name not in self.minors for name in names):
            return ()
        return tuple(f"{CAPABILITY_NODES}/nvidia-cap{self.minors[name]}" for name in names)


def read_capabilities(proc: Path) -> Capabilities:
    """What the kernel lists; nothing where it has no such list, as without cards that have MIG."""
    try:
        text = (proc / CAPABILITIES).read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    pairs = (line.split() for line in text.splitlines())
    return Capabilities(minors={pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredInstance:
    """One MIG device. ``index`` is its number on the card; ``gi`` and ``ci`` number its GPU and compute instance.

    These numbers and the UUID are other ones when the same profile is made again, but ``slices``, the card's memory
    slices that it has, as ``4+2``; empty where the driver does not tell. ``memory`` is in MiB, 0 where it is not known.
    ``problem`` is why it does not answer, where the rest is from an earlier look.
    """

    uuid: str
    index: int
    gi: int
    ci: int
    profile: str = ""
    slices: str = ""
    memory: int = 0
    problem: str = ""


def instances(device: Device) -> tuple[DiscoveredInstance, ...]:
    """What discovery has noted of a card."""
    return device.traits if isinstance(device.traits, tuple) else ()


def instance(device: Device) -> DiscoveredInstance | None:
    """The instance that a device is; None for a card."""
    return device.traits if isinstance(device.traits, DiscoveredInstance) else None
