"""A simulated machine with Biren GPUs: sysfs and dev trees, and a ``brsmi`` that prints CSV."""

from __future__ import annotations

import sys
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, place, plug, unplug, write_numa

DRIVER = "biren"
IDS = {"vendor": "0xffff", "device": "0xffff"}
"""In no public list, and nothing here reads them."""
HANGS, FAILS = "brsmi.hangs", "brsmi.fails"
TOOL = f"""\
#!{sys.executable}
import pathlib, sys, time
here = pathlib.Path(__file__).parent
if (here / "{HANGS}").exists():
    time.sleep(3600)
if (here / "{FAILS}").exists():
    sys.exit("ERROR_UNINITIALIZED")
if sys.argv[1] != "gpu" or "index,uuid,name,memory.total" not in sys.argv[2]:
    sys.exit("ERROR_INVALID_ARGUMENT")
for row in sorted((here / "cards").iterdir(), key=lambda file: int(file.name)):
    sys.stdout.write(row.read_text())
"""


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    tree = Tree(root=directory)
    stage = _Stage(tree, machine)
    if not tree.written:
        stage.write()
        tree.done()
    paths = {"brsmi": str(tree.root / "bin/brsmi"), "driverRoot": str(tree.root / "driver")}
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "silent": lambda one, _value: tree.remove(f"bin/cards/{one.index}"),
        "garbled": lambda one, value: stage.list(one, str(value or "[N/A]")),
        "no-node": lambda one, _value: tree.remove(f"dev/biren/card_{one.index}"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove("bin/brsmi"),
        "tool-hangs": lambda: tree.write(f"bin/{HANGS}", ""),
        "tool-fails": lambda: tree.write(f"bin/{FAILS}", ""),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, {**tree.settings, **paths}, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def write(self) -> None:
        self._tree.write_all("sys/module/biren", {"version": "1.12.0"})
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self._tree, self._machine.numa_nodes)
        self._tree.write("dev/biren-m", "")
        self._tree.write("driver/lib/libbiren-ml.so.1", "")
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        plug(self._tree, self._machine, one, driver=DRIVER, **IDS)
        bus = f"sys/devices/{place(self._machine, one.index)}/{one.pci}"
        self._tree.write_all(bus, {"physical_id": one.index})
        self._tree.link(f"{bus}/biren/card_{one.index}/device", bus)
        self._tree.link(f"sys/class/biren/card_{one.index}", f"{bus}/biren/card_{one.index}")
        self._tree.write(f"dev/biren/card_{one.index}", "")
        self.list(one, str(one.memory))

    def list(self, one: MachineDevice, memory: str) -> None:
        """The GPU's line of the tool's answer."""
        self._tree.write(f"bin/cards/{one.index}", f"{one.index}, {one.uuid}, {one.model}, {memory}\n")

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        numbered = f"card_{one.index}"
        self._tree.remove(f"sys/class/biren/{numbered}", f"dev/biren/{numbered}", f"bin/cards/{one.index}")
        unplug(self._tree, one, DRIVER)

    def empty(self) -> None:
        for one in self._machine.devices:
            self.lose(one, 0)

    def unload(self) -> None:
        self.empty()
        self._tree.remove("sys/module/biren", "sys/class/biren", "dev/biren-m")

    def write_tool(self) -> None:
        self._tree.remove(f"bin/{HANGS}", f"bin/{FAILS}")
        self._tree.write("bin/brsmi", TOOL)
        (self._tree.root / "bin/brsmi").chmod(0o755)
