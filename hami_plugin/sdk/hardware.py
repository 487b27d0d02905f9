"""A vendor's devices on the PCI bus: whether there are any, how they are connected, and why none can be served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths, Roots
from hami_plugin.model.device import Device, Link, Links, scored, symmetric
from hami_plugin.sdk import pci

_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_SOUND = "04"
"""The PCI class of a card's audio function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What all devices of a vendor have in common. ``title`` is what people call one, ``module`` its kernel module.

    ``vendors`` and ``devices`` are PCI ids as in sysfs, without ``0x``; no ``devices`` means any. ``kinds`` are
    prefixes of PCI classes, for vendors with other hardware on the bus. ``node`` is the device node's name before its
    number, and ``sysfs_class`` the name in ``/sys/class``. Without ``vendors``, the devices are those of that class,
    for PCI ids that are not public.
    """

    title: str
    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    module: str = ""
    node: str = ""
    sysfs_class: str = ""

    def plugged(self, paths: HostPaths) -> tuple[pci.PciDevice, ...]:
        """The devices on the bus, by address, with or without a driver."""
        if not self.vendors:
            return tuple(self.numbered(paths).values())
        every = (one for vendor in self.vendors for one in pci.scan(paths.sysfs, vendor, self.devices))
        found = [one for one in every if not one.kind.startswith(_SOUND) and self._is_kind(one.kind)]
        return tuple(sorted(found, key=lambda one: one.address))

    def driven(self, paths: HostPaths) -> tuple[pci.PciDevice, ...]:
        """The same, if a driver is bound to any of them; otherwise ``DriverUnavailableError`` with the reason."""
        found = self.plugged(paths)
        if not any(one.driver for one in found):
            raise self.absent(paths)
        return found

    def numbered(self, paths: HostPaths) -> Mapping[int, pci.PciDevice]:
        """All devices of ``sysfs_class``, whosever they are, by the number in their name."""
        classes, _, prefix = f"class/{self.sysfs_class}".rpartition("/")
        names = ((folder, folder.name.removeprefix(prefix)) for folder in (paths.sysfs / classes).glob(f"{prefix}*"))
        found = {int(number): folder for folder, number in names if _NUMBER.fullmatch(number)}
        return {number: pci.look((found[number] / "device").resolve()) for number in sorted(found)}

    def present(self, settings: Roots, paths: HostPaths) -> bool:
        """Whether the host has such hardware."""
        roots = paths.rooted(settings)
        return bool(self.plugged(roots)) or (not self.vendors and self._loaded(roots))

    def absent(self, paths: HostPaths) -> DriverUnavailableError:
        """Why no device can be served: none exists, or none has a driver."""
        if not self.vendors:
            return self._unshown(paths)
        count = len(self.plugged(paths))
        if not count:
            return DriverUnavailableError(DriverReason.NO_DEVICES, f"there is no {self.title} on the PCI bus")
        load = f", or load its module: modprobe {self.module}" if self.module else ""
        return DriverUnavailableError(
            DriverReason.NO_DRIVER,
            f"{count} {self.title}s are on the PCI bus, but no driver is bound to them",
            hint=f"install the vendor's driver{load}",
        )

    def version(self, paths: HostPaths) -> str:
        """The kernel module's version; empty if it is not loaded or has none."""
        return pci.text(paths.sysfs / "module" / self.module / "version")

    def _unshown(self, paths: HostPaths) -> DriverUnavailableError:
        """Without PCI ids, only the kernel module shows whether there is a device."""
        if self._loaded(paths):
            return DriverUnavailableError(
                DriverReason.NO_DEVICES, f"the kernel module {self.module} is loaded, and shows no {self.title}"
            )
        return DriverUnavailableError(
            DriverReason.NO_DRIVER,
            f"the kernel module {self.module} is not loaded",
            hint=f"install the vendor's driver, or load its module: modprobe {self.module}; or set enabled: false",
        )

    def _loaded(self, paths: HostPaths) -> bool:
        return (paths.sysfs / "module" / self.module).exists()

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
    """How each pair of devices is connected: the distance on the bus, and the number of ``lanes`` of a ``fabric``.

    Devices with the same address are on one board.
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
