"""A simulated machine with Vastai cards: sysfs and dev trees, and a ``vasmi`` that prints JSON.

A profile's devices are dies; their key ``card`` is the serial number of the card that they are on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa
from vendors.vastai.dies import PCI_DEVICES, PCI_VENDORS

DRIVER = "vastai_pci"
IDS = {"vendor": f"0x{PCI_VENDORS[0]}", "device": f"0x{PCI_DEVICES[0]}"}
HANGS = "vasmi.hangs"
TOOL = f"""\
#!{sys.executable}
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
if (here / "{HANGS}").exists():
    time.sleep(3600)
if sys.argv[1:] != ["getmem", "--display-format=json"]:
    sys.exit("unknown command")
files = sorted((here / "dies").iterdir(), key=lambda file: int(file.name))
sys.stdout.write(json.dumps({{"elem": [json.loads(file.read_text()) for file in files]}}))
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
        "silent": lambda one, _value: tree.remove(f"bin/dies/{one.index}"),
        "garbled": lambda one, value: stage.list(one, str(value or "N/A")),
        "no-node": lambda one, _value: tree.remove(f"dev/vacc{one.index}"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove("bin/vasmi"),
        "tool-hangs": lambda: tree.write(f"bin/{HANGS}", ""),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, {**tree.settings, "vasmi": str(tree.root / "bin/vasmi")}, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def write(self) -> None:
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self._tree, self._machine.numa_nodes)
        for name in ("vatools", "va_sync"):
            self._tree.write(f"dev/{name}", "")
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        plug(self._tree, self._machine, one, driver=DRIVER, **IDS)
        self._tree.write(f"dev/vacc{one.index}", "")
        self._tree.write(f"dev/va{one.index}_ctl", "")
        self.list(one, f"{one.memory} MiB")

    def list(self, one: MachineDevice, memory: str) -> None:
        """The die's part of the tool's answer."""
        item = {"pci_bus": one.pci, "sn": one.extra["card"], "vals": {"Physical": {"value": memory}}}
        self._tree.write(f"bin/dies/{one.index}", json.dumps(item))

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        self._tree.remove(f"bin/dies/{one.index}", f"dev/vacc{one.index}", f"dev/va{one.index}_ctl")
        unplug(self._tree, one, DRIVER)

    def empty(self) -> None:
        for one in self._machine.devices:
            self.lose(one, 0)

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            plug(self._tree, self._machine, one, driver="", **IDS)

    def write_tool(self) -> None:
        self._tree.remove(f"bin/{HANGS}")
        self._tree.write("bin/vasmi", TOOL)
        (self._tree.root / "bin/vasmi").chmod(0o755)
