"""A simulated Ascend machine: a ``libdcmi.so`` that the real driver loads, the file trees beside it, and its faults."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.machine import Machine
from hami_plugin.simulation.c_compiler import CSources, build
from hami_plugin.simulation.tools import LOAD
from hami_plugin.simulation.trees import Tree, plug, unplug, write_nodes, write_numa

VERSION = "24.1.rc3"
ERROR = 0x80E01801
_KINDS = {"SYS": 1, "NODE": 1, "PHB": 2, "PXB": 4, "PIX": 5}
_HCCS, _SIO, _SWITCHED = 3, 6, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuCondition:
    """One NPU at present. ``code`` is what DCMI answers when it is asked about it; without ``die`` it has no name.

    ``shared``: several containers may open it. ``busy`` is in percent, and ``used`` in MiB of its memory.
    """

    present: bool = True
    code: int = 0
    health: int = 0
    hangs: bool = False
    die: bool = True
    shared: bool = True
    busy: int = 0
    used: int = 0


def library_state(machine: Machine, conditions: Sequence[NpuCondition], driver: int) -> str:
    """``driver`` is what DCMI answers to every question at all; 0 when it works."""
    places = [place for place, condition in enumerate(conditions) if condition.present]
    lines = [f"driver {VERSION} {driver} units {len(places)}"]
    lines += [_unit(machine, place, conditions[place]) for place in places]
    lines += [" ".join(str(kind(machine, one, other)) for other in places) for one in places]
    return "\n".join((*lines, ""))


def kind(machine: Machine, one: int, other: int) -> int:
    """DCMI's number for a pair of the profile. The fabric hides the PCIe level."""
    level = machine.levels[one][other]
    if not machine.lanes[one][other]:
        return _KINDS.get(level, 0)
    if level == "INT":
        return _SIO
    return _SWITCHED if machine.via_switch else _HCCS


def _unit(machine: Machine, place: int, condition: NpuCondition) -> str:
    device = machine.devices[place]
    ids = " ".join(str(device.extra[key]) for key in ("card_id", "device_id"))
    numbers = f"{device.extra['aicore']} {device.extra['logic_id']} {device.extra['phy_id']}"
    die = " ".join(str(int(part, 16) if condition.die else 0) for part in device.uuid.split("-"))
    health = f"{condition.health} {ERROR if condition.health else 0:x}"
    present = f"{health} {condition.code} {int(condition.hangs)} {int(condition.shared)}"
    present = f"{present} {condition.busy} {condition.used}"
    return f"npu {ids} {device.model} {numbers} {die} {device.pci} {present}"


_DRIVER = "davinci"
_PCI_MODELS = {"310P3": "0xd500", "910A": "0xd801", "Ascend910": "0xd803"}
_910B = "0xd802"
_CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
_INSTALLED = {
    "usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "usr/local/Ascend/driver/version.info": f"Version={VERSION}\n",
    "usr/local/dcmi/libdcmi.so": "",
    "usr/local/bin/npu-smi": "",
    "etc/ascend_install.info": "UserName=HwHiAiUser\n",
}


def write_files(tree: Tree, machine: Machine, conditions: Sequence[NpuCondition], *, loaded: bool) -> None:
    """Bring the files in line with what is plugged in, and with whether the kernel module is ``loaded``."""
    if not tree.written:
        for path, text in _INSTALLED.items():
            tree.write(f"root/{path}", text)
        write_numa(tree, machine.numa_nodes)
        tree.done()
    _nodes(tree, _CONTROL_NODES, there=loaded)
    for device, condition in zip(machine.devices, conditions, strict=True):
        if condition.present:
            model, driver = _PCI_MODELS.get(device.model, _910B), _DRIVER if loaded else ""
            plug(tree, machine, device, vendor="0x19e5", device=model, driver=driver)
        else:
            unplug(tree, device, _DRIVER)
        _nodes(tree, [f"davinci{device.extra['phy_id']}"], there=loaded and condition.present)


def _nodes(tree: Tree, names: Sequence[str], *, there: bool) -> None:
    if there:
        write_nodes(tree, names)
    else:
        tree.remove(*(f"dev/{name}" for name in names))


__all__ = ["NpuSimulator", "simulate"]


LIBRARY = "libdcmi.so"
DRIVER_GONE = -8005
_LOST = -8008
_STATE, _LIBRARY_STATE = "faults.json", "npus"
FAULTS = (
    *("lost", "back", "unhealthy", "hang", "garbage", "unshared", "unplug", "plug", "driver-gone", "driver-back"),
    *("vnpu", "vnpu-used", "order", LOAD),
)
_VNPUS, _ORDER = "vnpus", "order"
"""Beside the library: the virtual NPUs, and what becomes of the next call of a kind."""


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

        ``value`` of ``unhealthy`` is DCMI's grade, 3 unless given, and of ``load`` percent and MiB, as ``37:1024``.
        ``vnpu`` cuts an NPU by a template, ``vnpu-used`` says how many processes have its virtual NPUs open, and
        ``order`` what becomes of a call: ``create after``.
        """
        if fault not in FAULTS:
            raise ValueError(f"no fault is named {fault!r}; choose from: {', '.join(FAULTS)}")
        places = range(len(self.machine.devices))
        if device is not None and device not in places:
            raise ValueError(f"there is no NPU {device}; {self.machine.name} has {len(places)}")
        if fault == "order":
            (self.directory / _ORDER).write_text(str(value), encoding="ascii")
            return
        with self._state() as state:
            if fault.startswith("vnpu"):
                self._cut(fault, places if device is None else (device,), value)
            elif fault.startswith("driver-"):
                state["driver"] = DRIVER_GONE if fault == "driver-gone" else 0
            else:
                for place in places if device is None else (device,):
                    _suffer(state["npus"][place], fault, value)

    def _cut(self, fault: str, places: Iterable[int], value: int | str) -> None:
        """Change the list of virtual NPUs, as somebody else does."""
        file = self.directory / _VNPUS
        there = [line.split() for line in file.read_text("ascii").splitlines()] if file.exists() else []
        for place in places:
            extra = self.machine.devices[place].extra
            own = [str(extra["card_id"]), str(extra["device_id"])]
            if fault == "vnpu-used":
                there = [[*one[:4], str(value)] if one[:2] == own else one for one in there]
                continue
            number = 100 + 16 * int(extra["phy_id"]) + sum(one[:2] == own for one in there)
            there.append([*own, str(number), str(value), "0"])
            Tree(root=self.directory).write(f"dev/vdavinci{number}", "")
        _replace(file, "".join(" ".join(one) + "\n" for one in there))

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """What is wrong at present; what the caller makes of it is written, and followed by all files."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            yield state
            _replace(self.directory / _STATE, json.dumps(state))
            conditions = [NpuCondition(**npu) for npu in state["npus"]]
            _replace(self.directory / _LIBRARY_STATE, library_state(self.machine, conditions, state["driver"]))
            write_files(Tree(root=self.directory), self.machine, conditions, loaded=state["driver"] == 0)

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
    build(CSources(library=LIBRARY, folder=Path(__file__).with_name("native")), directory / LIBRARY)
    simulator = NpuSimulator(machine=machine, directory=directory)
    with simulator._state():  # noqa: SLF001  # the class's own factory
        return simulator


def _suffer(npu: dict[str, Any], fault: str, value: int | str) -> None:
    match fault:
        case "load":
            npu["busy"], npu["used"] = map(int, str(value).split(":"))
        case "lost":
            npu["code"] = _LOST
        case "back":
            npu.clear()
        case "unhealthy":
            npu["health"] = int(value) or 3
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
