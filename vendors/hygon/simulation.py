"""A simulated host with DCUs: sysfs and dev trees whose NUMA nodes are wrong, and a ``hy-smi`` that knows better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa
from vendors.hygon.cards import DRIVERS, MIB, PCI_VENDOR
from vendors.hygon.places import ADDRESS, NODE

DRIVER = DRIVERS[0]
IDS = {"Z100": "0x54b7", "K100_AI": "0x6210"}
TOOL = "opt/hyhal/bin/hy-smi"
BANNER = "================ System Management Interface ================"
NODES = "sys/class/kfd/kfd/topology/nodes"


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    stage = Stage(Tree(root=directory), machine)
    tree = stage.tree
    if not tree.written:
        stage.write()
        tree.done()
    settings = {
        **tree.settings,
        "hySmi": str(directory / TOOL),
        "hyhal": str(directory / "opt/hyhal"),
        "hygonPath": str(directory / "opt/hygondriver"),
    }
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "ecc": lambda one, value: tree.write(f"{_folder(one)}/ras/umc_err_count", f"ue: {value or 1}\nce: 0\n"),
        "garbled": lambda one, value: tree.write(f"{_folder(one)}/mem_info_vram_total", str(value or "much")),
        "no-node": lambda one, _value: tree.remove(f"dev/dri/renderD{one.extra['drm_render']}"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove(TOOL),
        "tool-hangs": lambda: stage.write_tool("sleep 3600"),
        "tool-garbled": lambda: stage.write_tool(f"echo '{BANNER}'"),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, settings, faults, machine_faults)


class Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self.tree = tree
        self._machine = machine

    def write(self) -> None:
        self.tree.write_all(f"sys/module/{DRIVER}", {"version": "6.2.31"})
        for name in ("dev/kfd", "dev/mkfd", "opt/hyhal/lib/librocm_smi64.so", "opt/hygondriver/env.sh"):
            self.tree.write(name, "")
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self.tree, self._machine.numa_nodes)
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        extra = one.extra
        render, card, units = (int(extra[key]) for key in ("drm_render", "drm_card", "compute_units"))
        facts = {"serial_number": extra["serial"], "product_name": one.model, "mem_info_vram_total": one.memory * MIB}
        self.tree.write_all(_folder(one), {**facts, "unique_id": f"{0x5150 + one.index:016x}"})
        self.tree.write(f"{_folder(one)}/ras/umc_err_count", "ue: 0\nce: 0\n")
        for name, minor in ((f"card{card}", card), (f"renderD{render}", render)):
            self.tree.write_all(f"{_folder(one)}/drm/{name}", {"dev": f"226:{minor}"})
            self.tree.write(f"dev/dri/{name}", "")
        properties = {"simd_count": units * 4, "simd_per_cu": 4, "drm_render_minor": render, "vendor_id": 7572}
        lines = "".join(f"{name} {value}\n" for name, value in properties.items())
        self.tree.write(f"{NODES}/{one.index + len(self._machine.numa_nodes)}/properties", lines)

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        unplug(self.tree, one, DRIVER)
        nodes = (f"dev/dri/card{one.extra['drm_card']}", f"dev/dri/renderD{one.extra['drm_render']}")
        self.tree.remove(*nodes, f"{NODES}/{one.index + len(self._machine.numa_nodes)}")

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        self.tree.remove(f"sys/module/{DRIVER}", "dev/kfd", "dev/mkfd")
        for one in self._machine.devices:
            self.lose(one, 0)

    def write_tool(self, instead: str = "") -> None:
        """The tool prints its banner before the JSON, as Hygon's does."""
        cards = {f"card{one.index}": {ADDRESS: one.pci, NODE: str(one.numa)} for one in self._machine.devices}
        printed = f"cat <<'END'\n{BANNER}\n{json.dumps(cards)}\nEND"
        self.tree.write(TOOL, f"#!/bin/sh\n{instead or printed}\n")
        (self.tree.root / TOOL).chmod(0o755)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        at_zero = replace(one, numa=0)
        plug(self.tree, self._machine, at_zero, vendor=f"0x{PCI_VENDOR}", device=IDS[one.model], driver=driver)


def _folder(one: MachineDevice) -> str:
    return f"sys/bus/pci/devices/{one.pci}"
