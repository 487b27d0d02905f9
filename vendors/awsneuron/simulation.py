"""A simulated EC2 machine with Neuron devices: sysfs and dev trees, and a ``neuron-ls`` that prints what AWS's does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa
from vendors.awsneuron.chips import PCI_VENDOR

DRIVER = "neuron"
CLASS = "sys/devices/virtual/neuron_device"
IDS = {"Inferentia": "7064", "Inferentia2": "7264", "Trainium1": "7164", "Trainium2": "7364"}
LISTING, HANGS = "neuron-ls.json", "neuron-ls.hangs"
TOOL = f"""\
#!{sys.executable}
import pathlib, sys, time
here = pathlib.Path(__file__).parent
if (here / "{HANGS}").exists():
    time.sleep(3600)
sys.stdout.write((here / "{LISTING}").read_text())
"""


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    tree = Tree(root=directory)
    stage = _Stage(tree, machine)
    if not tree.written:
        stage.write()
        tree.done()
    settings = {**tree.settings, "neuronLs": str(tree.root / "bin/neuron-ls")}
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "ecc": lambda one, value: tree.write(f"{_folder(one)}/stats/hardware/mem_ecc_uncorrected", f"{value or 1}\n"),
        "sram-ecc": lambda one, value: tree.write(
            f"{_folder(one)}/stats/hardware/sram_ecc_uncorrected", f"{value or 1}\n"
        ),
        "garbled": lambda one, value: tree.write(f"{_folder(one)}/core_count", str(value or "many")),
        "no-node": lambda one, _value: tree.remove(f"dev/neuron{one.index}"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove("bin/neuron-ls"),
        "tool-hangs": lambda: tree.write(f"bin/{HANGS}", ""),
        "tool-garbled": lambda: tree.write(f"bin/{LISTING}", "[{"),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, settings, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def write(self) -> None:
        self._tree.write_all("sys/module/neuron", {"version": "2.22.2.0"})
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self._tree, self._machine.numa_nodes)
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        folder, extra = _folder(one), one.extra
        # Both without a line's end, as the driver writes them.
        self._tree.write(f"{folder}/core_count", str(extra["physical_core_count"]))
        self._tree.write(f"{folder}/connected_devices", ", ".join(map(str, extra["connected_to"])))
        self._tree.write_all(f"{folder}/info", {"serial_number": f"{0x1A2B3C4D0000 + one.index:016x}"})
        self._tree.write_all(
            f"{folder}/info/architecture",
            {
                "arch_type": extra["arch_type"],
                "device_name": one.model,
                "instance_type": self._machine.extra["instance_type"],
            },
        )
        self._tree.write_all(f"{folder}/stats/hardware", {"mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0})
        self._tree.link(f"sys/class/neuron_device/{DRIVER}{one.index}", folder)
        self._tree.write(f"dev/neuron{one.index}", "")

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        self._tree.remove(f"sys/class/neuron_device/{DRIVER}{one.index}", _folder(one), f"dev/neuron{one.index}")
        unplug(self._tree, one, DRIVER)

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        self._tree.remove("sys/module/neuron")
        for one in self._machine.devices:
            self.lose(one, 0)

    def write_tool(self) -> None:
        listing = [_listed(one) for one in self._machine.devices]
        self._tree.remove(f"bin/{HANGS}")
        self._tree.write(f"bin/{LISTING}", json.dumps(listing, indent=1))
        self._tree.write("bin/neuron-ls", TOOL)
        (self._tree.root / "bin/neuron-ls").chmod(0o755)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        plug(self._tree, self._machine, one, vendor=f"0x{PCI_VENDOR}", device=f"0x{IDS[one.model]}", driver=driver)


def _folder(one: MachineDevice) -> str:
    return f"{CLASS}/neuron{one.index}"


def _listed(one: MachineDevice) -> Mapping[str, Any]:
    """One entry of ``neuron-ls -j``: the address has no domain, and the NUMA node is text."""
    return {
        "neuron_device": one.index,
        "bdf": one.pci.partition(":")[2],
        "numa_node": str(one.numa),
        "connected_to": one.extra["connected_to"] or None,
        "nc_count": one.extra["nc_count"],
        "memory_size": one.memory << 20,
        "neuroncore_ids": one.extra["neuroncore_ids"],
        "neuron_processes": [],
    }
