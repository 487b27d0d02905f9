"""A simulated Ascend machine in a folder: its library, its files, and the faults to disturb it with."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.machine import Machine
from hami_plugin.simulation.c_compiler import Source, build
from hami_plugin.simulation.trees import Tree
from vendors.ascend.node.simulation import trees
from vendors.ascend.node.simulation.library import Condition, text

LIBRARY = "libdcmi.so"
DRIVER_GONE = -8005
_LOST = -8008
_STATE, _LIBRARY_STATE = "faults.json", "npus"
FAULTS = ("lost", "back", "unhealthy", "hang", "garbage", "unshared", "unplug", "plug", "driver-gone", "driver-back")


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuSimulator:
    """One folder. Any process may disturb it; the faults reach drivers that run already."""

    machine: Machine
    directory: Path

    def settings(self) -> Mapping[str, Any]:
        """The vendor's settings under which the real driver finds this machine."""
        return {
            "dcmiLibrary": str(self.directory / LIBRARY),
            "driverRoot": str(self.directory / "root"),
            **Tree(root=self.directory).settings,
        }

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault, of one NPU (its place in the profile) or of all. ValueError lists the names.

        ``value`` of ``unhealthy`` is DCMI's grade, 3 unless given.
        """
        if fault not in FAULTS:
            raise ValueError(f"no fault is named {fault!r}; choose from: {', '.join(FAULTS)}")
        places = range(len(self.machine.devices))
        if device is not None and device not in places:
            raise ValueError(f"there is no NPU {device}; {self.machine.name} has {len(places)}")
        with self._state() as state:
            if fault.startswith("driver-"):
                state["driver"] = DRIVER_GONE if fault == "driver-gone" else 0
            else:
                for place in places if device is None else (device,):
                    _suffer(state["npus"][place], fault, int(value))

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """What is wrong at present; what the caller makes of it is written, and followed by all files."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            yield state
            _replace(self.directory / _STATE, json.dumps(state))
            conditions = [Condition(**npu) for npu in state["npus"]]
            _replace(self.directory / _LIBRARY_STATE, text(self.machine, conditions, state["driver"]))
            trees.write(Tree(root=self.directory), self.machine, conditions, loaded=state["driver"] == 0)

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / _STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"machine": self.machine.name, "driver": 0, "npus": [{} for _ in self.machine.devices]}
        if found["machine"] != self.machine.name:
            raise HamiError(
                f"{self.directory} holds {found['machine']}, not {self.machine.name}",
                hint="remove the folder, or choose another",
            )
        return found


def simulate(machine: Machine, directory: Path) -> NpuSimulator:
    """Set the folder up, or open it again: faults of an earlier run stay. BuildError when nothing can be compiled."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    build(Source(library=LIBRARY, folder=Path(__file__).with_name("native")), directory / LIBRARY)
    simulator = NpuSimulator(machine=machine, directory=directory)
    with simulator._state():  # noqa: SLF001  # the class's own factory
        return simulator


def _suffer(npu: dict[str, Any], fault: str, value: int) -> None:
    match fault:
        case "lost":
            npu["code"] = _LOST
        case "back":
            npu.clear()
        case "unhealthy":
            npu["health"] = value or 3
        case "hang":
            npu["hangs"] = True
        case "garbage":
            npu["die"] = False
        case "unshared":
            npu["shared"] = False
        case _:
            npu["present"] = fault == "plug"


def _replace(path: Path, content: str) -> None:
    """Whole or not at all: the library may be reading."""
    part = path.with_suffix(".part")
    part.write_text(content, encoding="ascii")
    part.replace(path)
