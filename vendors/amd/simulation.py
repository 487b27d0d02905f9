"""A simulated machine with AMD GPUs: PCI, drm and kfd trees in sysfs, and their nodes in dev."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, place, plug, unplug, write_numa
from vendors.amd.devices import PCI_VENDOR
from vendors.amd.kfd import MIB, ONE_HOP, XGMI

DRIVER = "amdgpu"
KFD = "sys/devices/virtual/kfd/kfd"
SIMDS_PER_UNIT = 4
FIRST_PART = 192
"""Render nodes of partitions begin here, apart from those of whole cards."""


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
        "ras": stage.corrupt,
        "no-node": lambda one, _value: tree.remove(f"dev/dri/renderD{one.extra['drm_render']}"),
        "garbled": lambda one, value: tree.write(f"{_kfd_node(one)}/properties", str(value or "\x00?")),
        "partition": stage.partition,
    }
    machine_faults = {"driver-gone": stage.unload, "driver-back": stage.write, "no-devices": stage.empty}
    return FileSimulator(machine, tree.settings, faults, machine_faults)


class _Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self._tree = tree
        self._machine = machine

    def write(self) -> None:
        self._tree.write_all("sys/module/amdgpu", {"version": "6.12.12"})
        self._tree.link("sys/class/kfd/kfd", KFD)
        self._tree.write("dev/kfd", "")
        for number in self._machine.numa_nodes or (0,):
            self._properties(f"{KFD}/topology/nodes/{number}", {"cpu_cores_count": 112, "simd_count": 0})
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self._tree, self._machine.numa_nodes)

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        self._tree.remove(*self._parts(one))
        folder = self._folder(one)
        self._tree.write_all(
            folder, {"product_name": one.model, "unique_id": one.extra["unique_id"].removeprefix("0x")}
        )
        self._tree.write_all(folder, {"current_compute_partition": "SPX", "current_memory_partition": "NPS1"})
        self._tree.write_all(folder, {"mem_info_vram_total": one.memory * MIB})
        self._tree.write(f"{folder}/ras/umc_err_count", "ue: 0\nce: 0\n")
        self._draw(folder, one.extra["drm_card"], one.extra["drm_render"])
        self._kfd(_kfd_node(one), one, render=one.extra["drm_render"])

    def partition(self, one: MachineDevice, value: int | str) -> None:
        """Cut a card into so many parts, 8 unless said otherwise: each a compute node and render node of its own."""
        count = int(value) or 8
        self._tree.write_all(self._folder(one), {"current_compute_partition": "CPX"})
        self._kfd(_kfd_node(one), one, render=one.extra["drm_render"], of=count)
        for part in range(1, count):
            number = FIRST_PART + 8 * one.index + part
            folder = f"sys/devices/platform/amdgpu_xcp_{number}"
            self._draw(folder, number, number)
            self._kfd(f"{KFD}/topology/nodes/{number}", one, render=number, of=count)

    def corrupt(self, one: MachineDevice, value: int | str) -> None:
        self._tree.write(f"{self._folder(one)}/ras/umc_err_count", f"ue: {value or 1}\nce: 4\n")

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        self._tree.remove(_kfd_node(one), *self._parts(one))
        self._tree.remove(f"dev/dri/card{one.extra['drm_card']}", f"dev/dri/renderD{one.extra['drm_render']}")
        unplug(self._tree, one, DRIVER)

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        self._tree.remove("sys/class/kfd", KFD, "sys/module/amdgpu", "dev/kfd")
        for one in self._machine.devices:
            self.lose(one, 0)

    def _parts(self, one: MachineDevice) -> list[str]:
        numbers = range(FIRST_PART + 8 * one.index + 1, FIRST_PART + 8 * one.index + 8)
        return [f"{KFD}/topology/nodes/{number}" for number in numbers]

    def _draw(self, folder: str, card: int, render: int) -> None:
        for name in (f"card{card}", f"renderD{render}"):
            self._tree.write_all(f"{folder}/drm/{name}", {"uevent": ""})
            self._tree.link(f"{folder}/drm/{name}/device", folder)
            self._tree.link(f"sys/class/drm/{name}", f"{folder}/drm/{name}")
            self._tree.write(f"dev/dri/{name}", "")

    def _kfd(self, folder: str, one: MachineDevice, *, render: int, of: int = 1) -> None:
        domain, bus, function = one.pci.split(":")
        slot, _, number = function.partition(".")
        facts = {
            "simd_count": one.extra["compute_units"] * SIMDS_PER_UNIT // of,
            "simd_per_cu": SIMDS_PER_UNIT,
            "vendor_id": int(PCI_VENDOR, 16),
            "location_id": int(bus, 16) << 8 | int(slot, 16) << 3 | int(number),
            "domain": int(domain, 16),
            "drm_render_minor": render,
            "unique_id": int(one.extra["unique_id"], 16),
        }
        self._properties(folder, facts)
        self._properties(f"{folder}/mem_banks/0", {"heap_type": 1, "size_in_bytes": one.memory * MIB // of})
        peers = [peer for peer in self._machine.devices if self._machine.lanes[one.index][peer.index]]
        for place_of, peer in enumerate(peers):
            link = {"type": XGMI, "weight": ONE_HOP, "node_to": peer.extra["kfd_node"]}
            self._properties(f"{folder}/io_links/{place_of}", link)

    def _properties(self, folder: str, facts: Mapping[str, int]) -> None:
        self._tree.write(f"{folder}/properties", "".join(f"{name} {value}\n" for name, value in facts.items()))

    def _folder(self, one: MachineDevice) -> str:
        return f"sys/devices/{place(self._machine, one.index)}/{one.pci}"

    def _plug(self, one: MachineDevice, driver: str) -> None:
        device = one.extra["pci_device_id"][:6].lower()
        plug(self._tree, self._machine, one, vendor=f"0x{PCI_VENDOR}", device=device, driver=driver)


def _kfd_node(one: MachineDevice) -> str:
    return f"{KFD}/topology/nodes/{one.extra['kfd_node']}"
