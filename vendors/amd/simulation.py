"""A simulated machine with AMD GPUs: PCI, drm and kfd trees in sysfs, and their nodes in dev."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import MachineFiles, SimulatedBoard, loaded, rewritten, without
from hami_plugin.simulation.tools import LOAD
from hami_plugin.simulation.trees import Files, Symlink, attributes, on_bus
from vendors.amd.driver import MIB, ONE_HOP, XGMI
from vendors.amd.settings import GPUS

KFD = "sys/devices/virtual/kfd/kfd"
NODES = f"{KFD}/topology/nodes"
SIMDS_PER_UNIT = 4
PART_BITS = 28
"""Kernels write the number of a part there, above the card's place on the bus."""
FIRST_PART = 192
"""Render nodes of partitions begin here, apart from those of whole cards."""


def _shared(machine: Machine) -> Files:
    processors = (_facts(str(number), cpu_cores_count=112, simd_count=0) for number in machine.numa_nodes or (0,))
    return {"sys/class/kfd/kfd": Symlink(KFD), **{path: text for files in processors for path, text in files.items()}}


def _own(machine: Machine, one: MachineDevice) -> Files:
    folder = on_bus(machine, one)
    modes = {"current_compute_partition": "SPX", "current_memory_partition": "NPS1"}
    facts = {"product_name": one.model, "unique_id": one.extra["unique_id"].removeprefix("0x"), **modes}
    return {
        **attributes(folder, {**facts, "mem_info_vram_total": one.memory * MIB}),
        **attributes(folder, {"mem_info_vram_used": 0, "gpu_busy_percent": 0}),
        f"{folder}/ras/umc_err_count": "ue: 0\nce: 0\n",
        **_drawn(folder, one.extra["drm_card"], one.extra["drm_render"]),
        **_computing(machine, one, str(one.extra["kfd_node"]), render=one.extra["drm_render"]),
    }


def _drawn(folder: str, card: int, render: int) -> Files:
    names = f"card{card}", f"renderD{render}"
    shown = {f"{folder}/drm/{name}/uevent": "\n" for name in names}
    links = {f"{folder}/drm/{name}/device": Symlink(folder) for name in names}
    classes = {f"sys/class/drm/{name}": Symlink(f"{folder}/drm/{name}") for name in names}
    return {**shown, **links, **classes, **{f"dev/dri/{name}": "" for name in names}}


def _computing(machine: Machine, one: MachineDevice, node: str, *, render: int, part: int = 0, of: int = 1) -> Files:
    """A node of the compute topology: a card, or one of so many parts of it, whose number is part of its place."""
    domain, bus, function = one.pci.split(":")
    slot, _, number = function.partition(".")
    peers = [peer for peer in machine.devices if machine.lanes[one.index][peer.index]]
    links = (
        _facts(f"{node}/io_links/{place}", type=XGMI, weight=ONE_HOP, node_to=peer.extra["kfd_node"])
        for place, peer in enumerate(peers)
    )
    return {
        **_facts(
            node,
            simd_count=one.extra["compute_units"] * SIMDS_PER_UNIT // of,
            simd_per_cu=SIMDS_PER_UNIT,
            vendor_id=int(GPUS.vendors[0], 16),
            location_id=part << PART_BITS | int(bus, 16) << 8 | int(slot, 16) << 3 | int(number),
            domain=int(domain, 16),
            drm_render_minor=render,
            unique_id=int(one.extra["unique_id"], 16),
        ),
        **_facts(f"{node}/mem_banks/0", heap_type=1, size_in_bytes=one.memory * MIB // of),
        **{path: text for files in links for path, text in files.items()},
    }


def _facts(node: str, **facts: int) -> Mapping[str, str]:
    return {f"{NODES}/{node}/properties": "".join(f"{name} {value}\n" for name, value in facts.items())}


def _partition(machine_files: MachineFiles, one: MachineDevice, value: int | str) -> None:
    """Cut a card into so many parts, 8 unless said otherwise: each a compute node and render node of its own."""
    count, own = int(value) or 8, str(one.extra["kfd_node"])
    machine_files.tree.write(f"{on_bus(machine_files.machine, one)}/current_compute_partition", "CPX\n")
    machine_files.tree.put(_computing(machine_files.machine, one, own, render=one.extra["drm_render"], of=count))
    for part, number in enumerate(_parts(one)[: count - 1], 1):
        machine_files.tree.put(_drawn(f"sys/devices/platform/amdgpu_xcp_{number}", number, number))
        machine_files.tree.put(_computing(machine_files.machine, one, str(number), render=number, part=part, of=count))


def _parts(one: MachineDevice) -> range:
    return range(FIRST_PART + 8 * one.index + 1, FIRST_PART + 8 * one.index + 8)


simulate = SimulatedBoard(
    hardware=GPUS,
    device=lambda one: one.extra["pci_device_id"][2:6].lower(),
    version="6.12.12",
    control=("kfd",),
    shared=_shared,
    own=_own,
    left=lambda one: tuple(f"{NODES}/{number}" for number in _parts(one)),
    faults={
        LOAD: loaded,
        "ras": rewritten(
            lambda one: f"sys/bus/pci/devices/{one.pci}/ras/umc_err_count", lambda value: f"ue: {value or 1}\nce: 4\n"
        ),
        "no-node": without(lambda one: f"dev/dri/renderD{one.extra['drm_render']}"),
        "garbled": rewritten(
            lambda one: f"{NODES}/{one.extra['kfd_node']}/properties", lambda value: str(value or "\x00?")
        ),
        "partition": _partition,
    },
).simulate
