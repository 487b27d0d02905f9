"""A simulated NVIDIA machine in a folder: its library, its state, its files, and the faults to disturb it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_plugin.model.machine import Machine
from vendors.nvidia.simulation import driver_root, faults, host, limits, mig_cut, native_build, nodes, records
from vendors.nvidia.simulation.state import STATE, State, create, opened


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSimulator:
    """One folder. Any process may attach to it, at any time; the faults reach daemons that run already."""

    directory: Path

    @classmethod
    def attach(cls, directory: Path) -> NvmlSimulator:
        """Reach a folder that ``simulate`` made. StateError when it is none."""
        with opened(directory / STATE):
            return cls(directory=directory.absolute())

    def settings(self) -> Mapping[str, Any]:
        """The vendor's settings under which the real driver finds this machine."""
        return {
            "nvmlLibrary": str(self.directory / native_build.LIBRARY),
            "sysfsRoot": str(self.directory / "sys"),
            "procRoot": str(self.directory / "proc"),
            "devRoot": str(self.directory / "dev"),
            "nvidiaDriverRoot": str(self.directory / driver_root.ROOT),
            "containerDriverRoot": str(self.directory / driver_root.ROOT),
            "nvidiaCdiHookPath": str(self.directory / driver_root.ROOT / driver_root.HOOK),
        }

    def make_nodes_real(self) -> None:
        """Put real device nodes, of harmless devices, where plain files stand in. HamiError where root is missing."""
        nodes.make_real(self.directory)

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault. ``device`` is the position in the profile, whatever is unplugged; None means all of them."""
        with opened(self.directory / STATE) as state:
            faults.apply(state, fault, device, value)
            self._follow(state)

    def _follow(self, state: State) -> None:
        """Bring the files in line with what is plugged in and which driver is loaded."""
        for index, device in enumerate(state.devices):
            move = host.hide if device.unplugged else host.show
            move(self.directory, index, records.sysfs_name(device), device.minor)
        nodes.follow(self.directory, state)
        driver_root.write(self.directory, state.header.nvml_version.decode().partition(".")[2])
        if state.header.driver == limits.DRIVER_GONE:
            host.remove_version(self.directory)
        else:
            host.write_version(self.directory, state.header.driver_version.decode())


def simulate(machine: Machine, directory: Path) -> NvmlSimulator:
    """Create the folder, or open it again: faults, counters and MIG instances of an earlier run stay.

    BuildError when the library cannot be compiled, StateError when the folder holds another machine.
    """
    directory = directory.absolute()
    native_build.build(directory / native_build.LIBRARY)
    create(machine, directory / STATE)
    host.write(machine, directory)
    simulator = NvmlSimulator(directory=directory)
    with opened(directory / STATE) as state:
        mig_cut.cut(machine, state)
        simulator._follow(state)  # noqa: SLF001  # the class's own factory
    return simulator
