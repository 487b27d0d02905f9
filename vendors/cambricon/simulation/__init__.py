"""A simulated machine with MLUs: PCI, proc and dev trees, a ``cnmon`` that prints what Cambricon's does, and a
``libcndev.so`` that cuts MLUs, if there is a C compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation import c_compiler
from hami_plugin.simulation.boards import (
    Disturb,
    FileSimulator,
    MachineFiles,
    SimulatedBoard,
    noted,
    rewritten,
    without,
)
from hami_plugin.simulation.c_compiler import BuildError, CSources
from hami_plugin.simulation.tools import LOAD, OTHERWISE, PROGRAM, Tool, ToolState
from hami_plugin.simulation.trees import Files
from vendors.cambricon.driver import CARDS
from vendors.cambricon.injection import BESIDE, CONTROL
from vendors.cambricon.settings import DYNAMIC, MLUS

VERSION = "v5.10.22"
IDS = {"MLU370-X8": "0370", "MLU590-M9": "0590"}


def _information(one: MachineDevice) -> str:
    return f"proc/{CARDS}/{one.pci}/information"


def _own(_machine: Machine, one: MachineDevice) -> Files:
    lines = {
        "Device name": one.model,
        "Device inode path": f"/dev/cambricon_dev{one.minor}",
        "Device Major": 236,
        "Device Minor": one.minor,
        "Driver Version": VERSION,
        "MCU Version": "v1.1.4",
        "Board Serial Number": f"SN/{0x1C2207000000 + int(one.extra['board']):x}",
    }
    nodes = {f"dev/{node}{one.minor}": "" for node in ("cambricon_dev", BESIDE[0])}
    return {_information(one): "".join(f"{key}: {value}\n" for key, value in lines.items()), **nodes}


def _says(state: ToolState) -> Mapping[str, str]:
    rows = "".join(
        _row(one, state.load(one), started=not state.noted("not-started", one)) for one in state.machine.devices
    )
    table = f"+----+\n| CNMON {VERSION} |\n+----+\n{rows}"
    return {
        "": table,
        "topo -m": _matrix(state.machine),
        OTHERWISE: f"{PROGRAM}{_program()}\nmain(NOTES, sys.argv[1:])\n",
    }


@cache
def _program() -> str:
    return Path(__file__).with_name("cnmon.py").read_text("utf-8")


def _row(one: MachineDevice, load: tuple[int, int], *, started: bool) -> str:
    """The two lines of a card in the table."""
    state = "On" if started else "Off"
    busy, used = load
    return (
        f"| {one.index:<5} /   {one.model:<12} v1.1.6 | {state:<12}{VERSION:>8} | {busy}%          N/A       |\n"
        f"|  0%   32C         30 W/ 150 W | {used:>5} MiB/{one.memory:>6} MiB | 10240 MiB/1048576 MiB |\n"
        "+-------------------------------+----------------------+-----------------------+\n"
    )


def _matrix(machine: Machine) -> str:
    """``cnmon topo -m``: MLK for a linked pair, else words for places on the bus."""
    numbers = [one.index for one in machine.devices]
    lines = ["      ".join(("", *(f"MLU{number}" for number in numbers), "CPU Affinity"))]
    for a in numbers:
        cells = ("X" if a == b else "MLK" if machine.lanes[a][b] else "CPU" for b in numbers)
        lines.append("   ".join((f"MLU{a}", *cells, "0-63")))
    return "\n".join(lines) + "\n"


LIBRARY = CSources(library="libcndev.so", folder=Path(__file__).with_name("native"))
SMLU = "smlu"
"""The folder of what MLUs are cut into; ``native/cndev.c`` says what is in it."""


def _smlu(path: str) -> Disturb:
    """A file of one MLU's; it goes with the value ``off``."""

    def change(machine_files: MachineFiles, one: MachineDevice, value: int | str) -> None:
        place = f"{SMLU}/{one.index}/{path.format(value)}"
        machine_files.tree.write(place, "") if value != "off" else machine_files.tree.remove(place)

    return change


def _call(machine_files: MachineFiles, _one: MachineDevice, value: int | str) -> None:
    """What becomes of CNDev's next such call, as ``cndevInit fail 7``."""
    symbol, _, order = str(value).partition(" ")
    machine_files.tree.write(f"{SMLU}/calls/{symbol}", order)


def _is_cut(machine: Machine) -> bool:
    """Whether the profile is of a machine whose MLUs are in sMLU mode."""
    return bool(machine.extra.get(SMLU))


_BOARD = SimulatedBoard(
    hardware=MLUS,
    device=lambda one: IDS.get(one.model, "0370"),
    driver="cambricon-pci-drv",
    control=CONTROL,
    settings={"cndev": LIBRARY.library},
    chosen=lambda machine: {"mode": DYNAMIC} if _is_cut(machine) else {},
    own=_own,
    tool=Tool(path="bin/cnmon", setting="cnmon", says=_says, garbled="| ?"),
    faults={
        "garbled": rewritten(_information, lambda value: f"{value or '?'}\n"),
        "no-node": without(lambda one: f"dev/cambricon_dev{one.minor}"),
        "not-started": noted("not-started"),
        LOAD: noted(LOAD),
        "smlu-mode": _smlu("on"),
        "smlu-used": _smlu("used.{}"),
        "smlu-busy": noted("busy"),
        "smlu-leave": noted("leave"),
        "smlu-call": _call,
    },
)


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """The machine's files, with what its MLUs are cut into as an earlier process has left it.

    A profile with ``smlu`` is a machine whose MLUs are to be cut, which needs the library: BuildError without it.
    """
    for one in machine.devices:
        folder = directory / SMLU / str(one.index)
        if folder.exists():
            continue
        for part in ("profiles", "instances"):
            (folder / part).mkdir(parents=True)
        if _is_cut(machine):
            (folder / "on").touch()
        (folder / "memory").write_text(f"{one.memory} 0\n", encoding="ascii")
    with suppress(*(() if _is_cut(machine) else (BuildError,))):
        c_compiler.build(LIBRARY, directory)
    return _BOARD.simulate(machine, directory)
