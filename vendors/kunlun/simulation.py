"""A simulated machine with Kunlun XPUs: sysfs and dev trees, and an ``xpu-smi`` that prints what Kunlunxin's does."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import Board, boards, topology
from hami_plugin.simulation.disturbed import FileSimulator
from vendors.kunlun.node import XPUS

TOOL = "xpu-smi"
P800 = "0x3688"


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    board = Board(
        vendor=XPUS.vendor, device=P800, module=XPUS.module, node=XPUS.node, control=("xpuctrl",), tool=TOOL, says=says
    )
    return boards(machine, directory, board, tool_setting="xpuSmi")


def says(machine: Machine, listed: list[MachineDevice], silent: frozenset[int]) -> dict[str, str]:
    """What the tool prints of the XPUs that it knows; those that are ``silent`` tell no numbers."""
    names = "".join(f"XPU {one.index}: {one.model}  {one.uuid}\n" for one in listed)
    return {
        "-L": names,
        "-m": "".join(_line(one, one.index in silent) for one in listed),
        "topo -m": topology(machine, "XPU", lambda _lanes: "XL"),
    }


def _line(one: MachineDevice, silent: bool) -> str:
    """32 columns, as a P800 has them."""
    if silent:
        return f"0000{one.pci} {one.index} {one.index} N/A\n"
    serial, clocks, rest = f"02K15K6200{one.index:02d}", "1450 " * 6, " 0" * 10
    memory = f"0 {one.memory} 0 1.0:2.6:1.39.1.7"
    return f'0000{one.pci} {one.index} {one.index} {serial} 36 0 0 0 86 {clocks}2 96 {memory} "{one.model}"{rest}\n'
