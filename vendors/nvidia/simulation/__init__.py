"""A simulated NVIDIA machine: a ``libnvidia-ml.so.1`` that the real binding loads, its files, and its faults.

A state file drives the library, and other processes may change it. Nothing here imports ``pynvml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_plugin.model.machine import Machine
from hami_plugin.simulation import c_compiler
from hami_plugin.simulation.c_compiler import BuildError, CSources
from vendors.nvidia.simulation import faults, files, layout, records
from vendors.nvidia.simulation.state import STATE, MachineState, StateError, create, cut_instances, opened

__all__ = ["BuildError", "NvmlSimulator", "StateError", "build", "simulate"]

LIBRARY: Final = "libnvidia-ml.so.1"
SOURCES: Final = Path(__file__).with_name("native")


def build(target: Path) -> Path:
    """Put the library at ``target``, or under its usual name into that folder. BuildError when it does not compile."""
    return c_compiler.build(CSources(library=LIBRARY, folder=SOURCES), target)


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
            "nvmlLibrary": str(self.directory / LIBRARY),
            "sysfsRoot": str(self.directory / "sys"),
            "procRoot": str(self.directory / "proc"),
            "devRoot": str(self.directory / "dev"),
            "nvidiaDriverRoot": str(self.directory / files.DRIVER_ROOT),
            "containerDriverRoot": str(self.directory / files.DRIVER_ROOT),
            "nvidiaCdiHookPath": str(self.directory / files.DRIVER_ROOT / files.HOOK),
        }

    def make_nodes_real(self) -> None:
        """Put real device nodes, of harmless devices, where plain files stand in. HamiError where root is missing."""
        files.make_nodes_real(self.directory)

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault. ``device`` is the position in the profile, whatever is unplugged; None means all of them."""
        with opened(self.directory / STATE) as state:
            faults.apply_fault(state, fault, device, value)
            self._follow(state)

    def _follow(self, state: MachineState) -> None:
        """Bring the files in line with what is plugged in and which driver is loaded."""
        for index, device in enumerate(state.devices):
            move = files.hide if device.unplugged else files.show
            move(self.directory, index, records.sysfs_name(device), device.minor)
        files.update_capabilities(self.directory, state)
        files.install_driver(self.directory, state.header.nvml_version.decode().partition(".")[2])
        if state.header.driver == layout.DRIVER_GONE:
            files.remove_version(self.directory)
        else:
            files.write_version(self.directory, state.header.driver_version.decode())


def simulate(machine: Machine, directory: Path) -> NvmlSimulator:
    """Create the folder, or open it again: faults, counters and MIG instances of an earlier run stay.

    BuildError when the library cannot be compiled, StateError when the folder holds another machine.
    """
    directory = directory.absolute()
    build(directory / LIBRARY)
    create(machine, directory / STATE)
    files.write_files(machine, directory)
    simulator = NvmlSimulator(directory=directory)
    with opened(directory / STATE) as state:
        cut_instances(machine, state)
        simulator._follow(state)  # noqa: SLF001  # the class's own factory
    return simulator
