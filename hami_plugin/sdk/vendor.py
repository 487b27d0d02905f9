"""What a vendor's module exports: its families, how its driver is opened, and how its machines are simulated."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hami_plugin.errors import HamiError, UnknownVendorError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Discovery, Fault, Links
from hami_plugin.model.machine import Machine
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk.family import Family, NodeSide


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A fault of one device, or of all devices of a driver if ``uuid`` is None.

    ``confirmed``: the driver queried the device and found the fault. A report, such as an XID, confirms nothing.
    """

    uuid: str | None
    fault: Fault
    confirmed: bool = False


class Driver(Protocol):
    """One vendor's driver. Every method blocks, is bounded, and is called on the driver's own thread only."""

    @property
    def busy_with(self) -> str | None:
        """UUID of the device that the call in progress is querying. Read from other threads."""

    def discover(self) -> Discovery:
        """Query every device. One that fails is a sighting with a fault.

        ``DriverUnavailableError`` if the driver as a whole does not answer.
        """

    def links(self) -> Links:
        """Measure every pair that the last ``discover`` saw. A pair that fails is a problem in the result."""

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """Wait up to ``timeout`` seconds for health events; usually there are none."""

    def close(self) -> None:
        """Close the driver. A later ``discover`` reopens it."""


@runtime_checkable
class EnergyMeter(Protocol):
    """A ``Driver`` whose hardware counts the energy that it draws."""

    def energy(self) -> Mapping[str, float]:
        """Joules by the UUID of each card, since a moment that stays the same while the driver is loaded.

        A card that does not tell is left out. Partitions of a card that are devices of their own kind have a part each.
        """


@runtime_checkable
class LoadMeter(Protocol):
    """A ``Driver`` whose hardware tells how much of it is in use."""

    def load(self) -> Mapping[str, DeviceLoad]:
        """By the UUID of each device that tells."""


if TYPE_CHECKING:  # a vendor's driver also runs where pydantic is not installed
    from hami_plugin.config.vendors import VendorSettings


def _always(*_asked: object) -> bool:
    return True


class Simulator(Protocol):
    """A vendor's simulated hardware, in which another process may cause faults."""

    def settings(self) -> Mapping[str, Any]:
        """Vendor settings with which the real driver finds the simulated hardware."""

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault by name (``lost``, ``back``, ``xid``, …); ValueError lists the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What a module in ``vendors`` exports as ``VENDOR``.

    ``open`` opens the vendor's driver on a node; without it the vendor's own device plugin serves the node. ``present``
    is a cheap check whether the host has such hardware, with or without a driver; it decides for vendors that are
    neither enabled nor disabled. ``isolated``: the driver runs in its own process by default, for libraries that may
    crash. ``further`` makes the family of a device type that ``families`` does not list, such as a profile that cards
    were cut into; the daemon adds it while there are such devices. ``machines`` are its other names in machine
    profiles. ``noun`` is what its users call a device: tables show ``NPU0`` for device 0.
    """

    name: str
    title: str
    settings: type[VendorSettings]
    families: Callable[[Any], tuple[Family, ...]]
    further: Callable[[Any, str], Family] | None = None
    open: Callable[[Any, HostPaths], Driver] | None = None
    present: Callable[[Any, HostPaths], bool] = _always
    isolated: bool = False
    machines: tuple[str, ...] = ()
    noun: str = "DEV"

    def simulate(self, machine: Machine, folder: Path) -> Simulator:
        """Set up a simulated machine in ``folder``, by ``simulate`` of the vendor's module ``simulation``."""
        package = f"vendors.{self.name}"
        try:
            simulation = importlib.import_module(f"{package}.simulation")
        except ModuleNotFoundError as error:
            if error.name not in (package, f"{package}.simulation"):
                raise
            raise HamiError(f"{self.title} hardware cannot be simulated", hint="choose another profile") from error
        simulator: Simulator = simulation.simulate(machine, folder)
        return simulator


def lazy(place: str) -> Callable[..., Any]:
    """The function at ``package.module:name``, imported when it is first called: a node loads the settings of all
    vendors, to look for their hardware, and the rest of those that it has.
    """
    module, _, name = place.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments)

    return call


def serving(
    families: Callable[[Any], tuple[Family, ...]], node_side: Callable[[Any, Family], NodeSide]
) -> Callable[[Any], tuple[Family, ...]]:
    """All families, each with its node side."""
    return lambda settings: tuple(replace(one, node=node_side(settings, one)) for one in families(settings))


def vendor_names() -> tuple[str, ...]:
    """Every module in ``vendors``, sorted."""
    package = importlib.import_module("vendors")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load_vendor(name: str) -> Vendor:
    """Import ``vendors.<name>`` and return its ``VENDOR``."""
    module = f"vendors.{name}"
    if module not in sys.modules and name not in (names := vendor_names()):
        raise UnknownVendorError(f"no vendor is named {name!r}", hint=f"choose from: {', '.join(names)}")
    vendor = getattr(importlib.import_module(module), "VENDOR", None)
    if not isinstance(vendor, Vendor) or vendor.name != name:
        raise UnknownVendorError(
            f"vendors.{name} exports no Vendor named {name!r}", hint="see docs/architecture.md, 'A vendor'"
        )
    return vendor
