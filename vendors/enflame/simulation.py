"""A simulated machine with GCUs: PCI and dev trees, and an ``efsmi`` that prints what Enflame's does."""

from __future__ import annotations

import sys
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, place, plug, unplug, write_numa
from vendors.enflame.devices import PCI_VENDOR
from vendors.enflame.tool import DRS

DRIVER = "enflame"
SLICES = (1, 2, 3, 6)
OFF = "Disable"
TOOL = f"""\
#!{sys.executable}
import pathlib, sys, time
here = pathlib.Path(__file__).parent
if (here / "efsmi.hangs").exists():
    time.sleep(3600)
asked = sys.argv[1:]
name = "table" if not asked else "profiles" if "--list-profile" in asked else "partitions"
sys.stdout.write((here / (name + ".txt")).read_text())
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
        "no-driver": lambda one, _value: tree.remove(f"{stage.folder(one)}/enflame"),
        "no-node": lambda one, _value: tree.remove(f"dev/gcu{one.minor}"),
        "cut": stage.cut,
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "partitions": lambda: stage.write_tool(DRS),
        "no-profiles": lambda: tree.write("bin/profiles.txt", ""),
        "tool-gone": lambda: tree.remove("bin/efsmi"),
        "tool-hangs": lambda: tree.write("bin/efsmi.hangs", ""),
        "tool-garbled": lambda: tree.write("bin/table.txt", "| ?"),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, {**tree.settings, "efsmi": str(tree.root / "bin/efsmi")}, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def folder(self, one: MachineDevice) -> str:
        return f"sys/devices/{place(self._machine, one.index)}/{one.pci}"

    def write(self) -> None:
        for one in self._machine.devices:
            self.restore(one, 0)
        self._tree.write("dev/gcuctl", "")
        write_numa(self._tree, self._machine.numa_nodes)
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        self._tree.write_all(f"{self.folder(one)}/enflame/gcu{one.minor}", {"dev": f"238:{one.minor}"})
        self._tree.write(f"dev/gcu{one.minor}", "")

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        self._tree.remove(f"dev/gcu{one.minor}")
        unplug(self._tree, one, DRIVER)

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        for one in self._machine.devices:
            self.lose(one, 0)

    def cut(self, one: MachineDevice, value: int | str) -> None:
        """One more partition of the card, of so many slices."""
        before = (self._tree.root / "bin/partitions.txt").read_text(encoding="utf-8")
        number = before.count(f"| {one.index} ")
        line = f"| {one.index} {_profile(one, int(value or 1))} {number} {one.index:04x}{number:04x} |\n"
        self._tree.write("bin/partitions.txt", before + line)

    def write_tool(self, virtual: str = OFF) -> None:
        """The tool as it is when no card has been cut yet; ``virtual`` is whether cards can be."""
        first, bin_ = self._machine.devices[0], "bin/"
        listed = (f"| 0 {_profile(first, count)} {i} {6 // count} - - |\n" for i, count in enumerate(SLICES))
        self._tree.remove(f"{bin_}efsmi.hangs")
        self._tree.write(f"{bin_}table.txt", "".join(_row(one, virtual) for one in self._machine.devices))
        self._tree.write(f"{bin_}profiles.txt", "".join(listed))
        self._tree.write(f"{bin_}partitions.txt", "")
        self._tree.write(f"{bin_}efsmi", TOOL)
        (self._tree.root / f"{bin_}efsmi").chmod(0o755)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        plug(self._tree, self._machine, one, vendor=f"0x{PCI_VENDOR}", device="0xc033", driver=driver)


def _profile(one: MachineDevice, slices: int) -> str:
    return f"{slices}g.{one.memory // 1024 * slices // 6}gb"


def _row(one: MachineDevice, virtual: str) -> str:
    """The two lines of a card in the table. The domain has two digits there."""
    return (
        f"| {one.index:<6} Enflame {one.model:<12} | 33.6.5           | {one.pci[2:]}  Enable        |\n"
        f"| 71℃    Sleep    118W / 300W | {one.memory}MiB {virtual:<7} | 0%          C807B4052{one.index:04} |\n"
        "+-----------------------------+------------------+---------------------------+\n"
    )
