"""A simulated machine with Iluvatar GPUs: sysfs and dev trees, and an ``ixsmi`` that prints what Iluvatar's does."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import Board, boards
from hami_plugin.simulation.disturbed import FileSimulator
from vendors.iluvatar.node import FIELDS, GPUS, LINK, QUESTION


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    board = Board(
        vendor=GPUS.vendor,
        device="0x0003",
        module=GPUS.module,
        node=GPUS.node,
        control=("itrctl", LINK),
        tool="ixsmi",
        says=says,
    )
    return boards(machine, directory, board, tool_setting="ixsmi")


def says(_machine: Machine, listed: list[MachineDevice], silent: frozenset[int]) -> dict[str, str]:
    """What the tool prints of the GPUs that it knows; those that are ``silent`` tell no numbers."""
    header = ", ".join(FIELDS).replace("memory.total", "memory.total [MiB]")
    rows = (
        f"{one.index}, {one.uuid}, {one.model}, 0000{one.pci.upper()}, "
        f"{'[N/A]' if one.index in silent else f'{one.memory} MiB'}"
        for one in listed
    )
    return {" ".join(QUESTION): "\n".join([header, *rows, ""])}
