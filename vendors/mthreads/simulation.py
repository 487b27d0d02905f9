"""A simulated machine with Moore Threads GPUs: sysfs and dev trees, and a fake ``mthreads-gmi`` with its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import Board, boards, topology
from hami_plugin.simulation.disturbed import FileSimulator
from vendors.mthreads.node import GPUS


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    board = Board(
        vendor=GPUS.vendor,
        device="0x0323",
        module=GPUS.module,
        node=GPUS.node,
        control=(),
        tool="mthreads-gmi",
        says=says,
        drawing=True,
    )
    return boards(machine, directory, board, tool_setting="mthreadsGmi")


def says(machine: Machine, listed: list[MachineDevice], silent: frozenset[int]) -> dict[str, str]:
    """What the tool prints of the GPUs that it knows; those that are ``silent`` tell no numbers."""
    report = {"Attached GPUs": len(listed), "GPU": [_entry(one, one.index in silent) for one in listed]}
    return {"-q --json": json.dumps(report, indent=1), "topo -m": topology(machine, "GPU", lambda lanes: f"MT{lanes}")}


def _entry(one: MachineDevice, silent: bool) -> dict[str, Any]:
    return {
        "Index": str(one.index),
        "Product Name": one.model,
        "GPU UUID": one.uuid,
        "PCI": {"Bus ID": f"0000{one.pci.upper()}"},
        "FB Memory Usage": {"Total": "N/A" if silent else f"{one.memory}MiB", "Used": "0MiB"},
    }
