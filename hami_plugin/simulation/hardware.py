"""A simulated machine in place of a real one: its vendor, and settings that point the vendor's driver to it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_plugin.errors import ConfigError, HamiError, UnknownVendorError
from hami_plugin.model.machine import Machine
from hami_plugin.sdk import Simulator, Vendor, load_vendor, vendor_names
from hami_plugin.simulation.machines import load_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHardware:
    """``simulator`` injects faults; ``settings`` override the vendor's own."""

    machine: Machine
    vendor: Vendor
    simulator: Simulator
    settings: Mapping[str, Any]


def simulate(profile: str, directory: Path | None = None) -> SimulatedHardware:
    """Set up ``profile`` (a name, or a file) in ``directory``, or in a new temporary one."""
    machine = load_machine(profile)
    vendor = vendor_of(machine)
    folder = directory or _temporary()
    try:
        simulator = vendor.simulate(machine, folder)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError([f"machine profile {profile} cannot be simulated: {_lacking(error)}"]) from error
    return SimulatedHardware(machine=machine, vendor=vendor, simulator=simulator, settings=simulator.settings())


def simulate_all(profiles: str, directory: Path | None = None) -> tuple[SimulatedHardware, ...]:
    """Machines of different vendors in one node, comma-separated. If there are several, each has a directory."""
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    if profiles and not names:
        raise ConfigError([f"{profiles!r} names no machine; `hami-plugin discover --list-profiles` prints the names"])
    if len(names) < 2:
        return tuple(simulate(name, directory) for name in names)
    folder, called = directory or _temporary(), [Path(name).stem for name in names]
    if same := next((name for name in called if called.count(name) > 1), None):
        raise HamiError(f"--simulate {profiles}: two machines are named {same}", hint="rename one of them")
    machines = tuple(simulate(name, folder / own) for name, own in zip(names, called, strict=True))
    vendors = [machine.vendor for machine in machines]
    twice = next((vendor for vendor in vendors if vendors.count(vendor) > 1), None)
    if twice:
        raise HamiError(
            f"--simulate {profiles}: two machines have {twice.title}", hint="give one machine for each vendor"
        )
    return machines


def _lacking(error: Exception) -> str:
    """What a vendor's simulation misses in a profile. A KeyError has only the key's name."""
    return f"it needs the key {error} of each device" if isinstance(error, KeyError) else str(error)


def _temporary() -> Path:
    """A directory that is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="hami-plugin-simulation-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def vendor_of(machine: Machine) -> Vendor:
    """The vendor whose driver serves this machine. A vendor with the machine's name is tried first."""
    with suppress(UnknownVendorError):
        return load_vendor(machine.vendor)
    known: list[str] = []
    for name in vendor_names():
        vendor = load_vendor(name)
        if machine.vendor in (name, *vendor.machines):
            return vendor
        known += (name, *vendor.machines)
    raise HamiError(
        f"profile {machine.name} is a machine of {machine.vendor!r}, which no vendor module supports",
        hint=f"choose a profile of: {', '.join(sorted(set(known)))}",
    )
