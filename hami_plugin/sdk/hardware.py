"""A vendor's devices on the PCI bus: whether there are any, how far apart they are, and why none can be served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths, Roots
from hami_plugin.model.device import Device
from hami_plugin.model.links import Link, Links, scored, symmetric
from hami_plugin.sdk import pci

_SOUND = "04"
"""The class of a card's second function, which only plays sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What all devices of a vendor have in common. ``title`` is what people call one, ``module`` the kernel's for them.

    ``vendors`` and ``devices`` are PCI ids as sysfs has them, without ``0x``; no ``devices`` means any. ``kinds`` are
    beginnings of PCI classes, where other things of the vendor are on the bus. ``node`` is the beginning of a node's
    name, before its number.
    """

    title: str
    vendors: tuple[str, ...]
    devices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    module: str = ""
    node: str = ""

    def plugged(self, paths: HostPaths) -> tuple[pci.PciDevice, ...]:
        """Those on the bus by address, whatever drives them."""
        every = (one for vendor in self.vendors for one in pci.scan(paths.sysfs, vendor, self.devices))
        found = [one for one in every if not one.kind.startswith(_SOUND) and self._is_kind(one.kind)]
        return tuple(sorted(found, key=lambda one: one.address))

    def driven(self, paths: HostPaths) -> tuple[pci.PciDevice, ...]:
        """The same, where a driver has any of them. ``DriverUnavailableError`` says why not."""
        found = self.plugged(paths)
        if not any(one.driver for one in found):
            raise self.absent(paths)
        return found

    def present(self, settings: Roots, paths: HostPaths) -> bool:
        """Whether the host has any."""
        return bool(self.plugged(paths.rooted(settings)))

    def absent(self, paths: HostPaths) -> DriverUnavailableError:
        """Why there is none to serve: no device, else no driver."""
        count = len(self.plugged(paths))
        if not count:
            return DriverUnavailableError(DriverReason.NO_DEVICES, f"there is no {self.title} on the PCI bus")
        load = f", or load its module: modprobe {self.module}" if self.module else ""
        return DriverUnavailableError(
            DriverReason.NO_DRIVER,
            f"{count} {self.title}s are on the PCI bus, and no driver has them",
            hint=f"install the vendor's driver{load}",
        )

    def version(self, paths: HostPaths) -> str:
        """Version of the kernel module; empty when it is not loaded, or does not tell."""
        return pci.text(paths.sysfs / "module" / self.module / "version")

    def _is_kind(self, kind: str) -> bool:
        return not self.kinds or kind.startswith(self.kinds)


def _none(_a: Device, _b: Device) -> int:
    return 0


def distances(
    devices: Sequence[Device],
    places: Iterable[pci.PciDevice],
    *,
    lanes: Callable[[Device, Device], int] = _none,
    fabric: str = "",
    problems: Sequence[str] = (),
) -> Links:
    """How every two devices are connected: their distance on the bus, and by how many ``lanes`` of a ``fabric``.

    Devices of one address are on one board.
    """
    bus = {one.address: one for one in places}
    found: dict[tuple[str, str], Link] = {}
    for a in devices:
        for b in devices:
            if a is b:
                continue
            ends = bus.get(a.pci), bus.get(b.pci)
            level = pci.level(ends[0], ends[1]) if ends[0] and ends[1] else ""
            found[a.uuid, b.uuid] = scored("INT" if a.pci and a.pci == b.pci else level, lanes(a, b), fabric)
    return symmetric(found, problems)
