"""A simulated machine with MLUs: PCI, proc and dev trees, and a ``cnmon`` that prints what Cambricon's does."""

from __future__ import annotations

import sys
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa
from vendors.cambricon.devices import CARDS
from vendors.cambricon.names import PCI_VENDOR
from vendors.cambricon.node import BESIDE, CONTROL

DRIVER = "cambricon-pci-drv"
VERSION = "v5.10.22"
IDS = {"MLU370-X8": "0370", "MLU590-M9": "0590"}
TOOL = f"""\
#!{sys.executable}
import pathlib, sys, time
here = pathlib.Path(__file__).parent
if (here / "cnmon.hangs").exists():
    time.sleep(3600)
sys.stdout.write((here / ("topo.txt" if "topo" in sys.argv else "table.txt")).read_text())
"""


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    tree = Tree(root=directory)
    stage = _Stage(tree, machine)
    if not tree.written:
        stage.write()
        tree.done()
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "garbled": lambda one, value: tree.write(_information(one), f"{value or '?'}\n"),
        "no-node": lambda one, _value: tree.remove(f"dev/cambricon_dev{one.minor}"),
        "not-started": lambda one, _value: stage.write_tool(off=one.index),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove("bin/cnmon"),
        "tool-hangs": lambda: tree.write("bin/cnmon.hangs", ""),
        "tool-garbled": lambda: tree.write("bin/table.txt", "| ?"),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, {**tree.settings, "cnmon": str(tree.root / "bin/cnmon")}, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def write(self) -> None:
        for one in self._machine.devices:
            self.restore(one, 0)
        for node in CONTROL:
            self._tree.write(f"dev/{node}", "")
        write_numa(self._tree, self._machine.numa_nodes)

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        lines = {
            "Device name": one.model,
            "Device inode path": f"/dev/cambricon_dev{one.minor}",
            "Device Major": 236,
            "Device Minor": one.minor,
            "Driver Version": VERSION,
            "MCU Version": "v1.1.4",
            "Board Serial Number": f"SN/{0x1C2207000000 + int(one.extra['board']):x}",
        }
        self._tree.write(_information(one), "".join(f"{key}: {value}\n" for key, value in lines.items()))
        for node in ("cambricon_dev", *BESIDE[:1]):
            self._tree.write(f"dev/{node}{one.minor}", "")
        self.write_tool()

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        self._tree.remove(f"proc/{CARDS}/{one.pci}", *(f"dev/{node}{one.minor}" for node in ("cambricon_dev", *BESIDE)))
        unplug(self._tree, one, DRIVER)

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        for one in self._machine.devices:
            self.lose(one, 0)

    def write_tool(self, off: int | None = None) -> None:
        rows = "".join(_row(one, started=one.index != off) for one in self._machine.devices)
        self._tree.remove("bin/cnmon.hangs")
        self._tree.write("bin/table.txt", f"+----+\n| CNMON {VERSION} |\n+----+\n{rows}")
        self._tree.write("bin/topo.txt", _matrix(self._machine))
        self._tree.write("bin/cnmon", TOOL)
        (self._tree.root / "bin/cnmon").chmod(0o755)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        device = f"0x{IDS.get(one.model, '0370')}"
        plug(self._tree, self._machine, one, vendor=f"0x{PCI_VENDOR}", device=device, driver=driver)


def _information(one: MachineDevice) -> str:
    return f"proc/{CARDS}/{one.pci}/information"


def _row(one: MachineDevice, *, started: bool) -> str:
    """The two lines of a card in the table."""
    state = "On" if started else "Off"
    return (
        f"| {one.index:<5} /   {one.model:<12} v1.1.6 | {state:<12}{VERSION:>8} | 0%          N/A       |\n"
        f"|  0%   32C         30 W/ 150 W | {0:>5} MiB/{one.memory:>6} MiB | 10240 MiB/1048576 MiB |\n"
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
