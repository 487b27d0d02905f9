"""A simulated machine with GCUs: PCI and dev trees, and an ``efsmi`` that does what Enflame's does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import MachineFiles, SimulatedBoard, noted, without
from hami_plugin.simulation.tools import OTHERWISE, PROGRAM, Tool, ToolState
from hami_plugin.simulation.trees import Files, on_bus
from vendors.enflame.settings import GCUS

SLICES = (1, 2, 3, 6)
PARTITIONS, CUT, NO_PROFILES = "partitions", "cut", "no-profiles"
MADE, USED, ORDER, MODE = "made", "used", "order", "mode"


def _own(machine: Machine, one: MachineDevice) -> Files:
    numbered = f"gcu{one.minor}"
    return {f"{on_bus(machine, one)}/enflame/{numbered}/dev": f"238:{one.minor}\n", f"dev/{numbered}": ""}


def _cut(machine_files: MachineFiles, one: MachineDevice, value: int | str) -> None:
    """One more partition of the card, of so many slices."""
    made = int(machine_files.noted(MADE, one) or 0)
    machine_files.note(CUT, one, f"{machine_files.noted(CUT, one)} {value or 1}#{made}")
    machine_files.note(MADE, one, str(made + 1))


def _is_cut(state: ToolState, one: MachineDevice) -> bool:
    """Whether the card is in DRS mode, by a fault or by its profile, until the tool switches it."""
    return state.noted(PARTITIONS, one) or bool(one.extra.get("drs"))


@cache
def _program() -> str:
    return Path(__file__).with_name("efsmi.py").read_text("utf-8")


def _says(state: ToolState) -> Mapping[str, str]:
    devices = state.machine.devices
    cut = [str(one.index) for one in devices if _is_cut(state, one)]
    named = {str(one.index): {str(i): _profile(one, count) for i, count in enumerate(SLICES)} for one in devices}
    rows = {str(one.index): _row(one, "{virtual:<7}") for one in devices}
    program = f"{PROGRAM}{_program()}\nmain(NOTES, {named!r}, {rows!r}, {cut!r}, sys.argv[1:])\n"
    return {"": program, OTHERWISE: program}


def _profile(one: MachineDevice, slices: int) -> str:
    return f"{slices}g.{one.memory // 1024 * slices // 6}gb"


def _row(one: MachineDevice, virtual: str) -> str:
    """The two lines of a card in the table. The domain has two digits there."""
    return (
        f"| {one.index:<6} Enflame {one.model:<12} | 33.6.5           | {one.pci[2:]}  Enable        |\n"
        f"| 71℃    Sleep    118W / 300W | {one.memory}MiB {virtual} | 0%          C807B4052{one.index:04} |\n"
        "+-----------------------------+------------------+---------------------------+\n"
    )


simulate = SimulatedBoard(
    hardware=GCUS,
    device=lambda _one: "c033",
    control=("gcuctl",),
    own=_own,
    tool=Tool(path="bin/efsmi", setting="efsmi", says=_says, garbled="| ?"),
    faults={
        "no-driver": without(lambda one: f"sys/bus/pci/devices/{one.pci}/enflame"),
        "no-node": without(lambda one: f"dev/gcu{one.minor}"),
        PARTITIONS: noted(PARTITIONS),
        NO_PROFILES: noted(NO_PROFILES),
        CUT: _cut,
        USED: noted(USED),
        ORDER: noted(ORDER),
        MODE: noted(MODE),
    },
).simulate
