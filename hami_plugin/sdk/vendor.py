"""What a vendor's module exports: its families, how its driver is opened, and how its machines are simulated."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hami_plugin.errors import UnknownVendorError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Discovery, Fault
from hami_plugin.model.links import Links
from hami_plugin.model.machine import Machine
from hami_plugin.sdk.family import Family, NodeSide


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A fault of one device, or of all of a driver's devices when ``uuid`` is None.

    ``confirmed``: the driver asked the device itself and found the fault. A report, such as an XID, confirms nothing.
    """

    uuid: str | None
    fault: Fault
    confirmed: bool = False


class Driver(Protocol):
    """One vendor's driver. Every method blocks, is bounded, and is called on the driver's own thread only."""

    @property
    def busy_with(self) -> str | None:
        """UUID of the device that the call in progress is asking about. Read from other threads."""

    def discover(self) -> Discovery:
        """Look at every device. One that fails is a sighting with a fault.

        ``DriverUnavailableError`` when the driver as a whole does not answer.
        """

    def links(self) -> Links:
        """Measure every pair that the last ``discover`` saw. A pair that fails is a problem in the answer, no error."""

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """Wait up to ``timeout`` seconds for health events; an empty answer is the usual one."""

    def close(self) -> None:
        """Let go of the driver. A later ``discover`` opens it again."""


if TYPE_CHECKING:  # a vendor's driver also runs where pydantic is not installed
    from hami_plugin.config.vendors import VendorSettings


def _always(*_asked: object) -> bool:
    return True


class Simulator(Protocol):
    """A vendor's simulated hardware that another process may disturb while it runs."""

    def settings(self) -> Mapping[str, Any]:
        """Vendor settings under which the real driver finds the simulated hardware."""

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault by name (``lost``, ``back``, ``xid``, …); ValueError lists the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What a module in ``vendors`` exports as ``VENDOR``.

    On a node, ``open`` opens the vendor's driver; without it the vendor's own device plugin serves the node.
    ``present`` is whether the host has such hardware, whatever drives it: a cheap look, which also decides for a vendor
    that nobody has enabled or disabled. ``isolated``: the driver runs in a process of its own, unless somebody has set
    otherwise; for libraries that may take their process down. ``simulate`` sets up a machine to play the vendor with.
    ``machines`` are its other names in machines' profiles.
    ``noun`` is what its users call one device: tables show ``NPU0`` for device 0.
    """

    name: str
    title: str
    settings: type[VendorSettings]
    families: Callable[[Any], tuple[Family, ...]]
    open: Callable[[Any, HostPaths], Driver] | None = None
    present: Callable[[Any, HostPaths], bool] = _always
    isolated: bool = False
    simulate: Callable[[Machine, Path], Simulator] | None = None
    machines: tuple[str, ...] = ()
    noun: str = "DEV"


def serving(
    families: Callable[[Any], tuple[Family, ...]], node_side: Callable[[Any, Family], NodeSide]
) -> Callable[[Any], tuple[Family, ...]]:
    """All families as a node serves them, each with its node side."""
    return lambda settings: tuple(replace(one, node=node_side(settings, one)) for one in families(settings))


def vendor_names() -> tuple[str, ...]:
    """Every module in ``vendors``, sorted."""
    package = importlib.import_module("vendors")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load_vendor(name: str) -> Vendor:
    """Import ``vendors.<name>`` and hand out its ``VENDOR``."""
    names = vendor_names()
    if name not in names:
        raise UnknownVendorError(f"no vendor is named {name!r}", hint=f"choose from: {', '.join(names)}")
    vendor = getattr(importlib.import_module(f"vendors.{name}"), "VENDOR", None)
    if not isinstance(vendor, Vendor) or vendor.name != name:
        raise UnknownVendorError(
            f"vendors.{name} exports no Vendor named {name!r}", hint="see docs/architecture.md, 'A vendor'"
        )
    return vendor
