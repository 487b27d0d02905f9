"""A simulated EC2 machine with Neuron devices: sysfs and dev trees, and a ``neuron-ls`` that prints what AWS's does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import MachineFiles, SimulatedBoard, rewritten, without
from hami_plugin.simulation.tools import LOAD, Tool, ToolState
from hami_plugin.simulation.trees import Files, Symlink, attributes
from vendors.awsneuron.driver import IN_USE, NEURONS

IDS = {"Inferentia": "7064", "Inferentia2": "7264", "Trainium1": "7164", "Trainium2": "7364"}


def _folder(one: MachineDevice) -> str:
    return f"sys/devices/virtual/neuron_device/neuron{one.index}"


def _counter(name: str) -> str:
    return f"stats/hardware/{name}_ecc_uncorrected"


def _in_use(core: int) -> str:
    return IN_USE.replace("*", str(core))


def _loaded(machine_files: MachineFiles, one: MachineDevice, value: int | str) -> None:
    """``37:1024``: so many MiB in use, all by its first core. What is busy nobody tells."""
    used = int(str(value).partition(":")[2]) << 20
    machine_files.tree.write(f"{_folder(one)}/{_in_use(0)}", f"{used}\n")


def _own(machine: Machine, one: MachineDevice) -> Files:
    folder, extra = _folder(one), one.extra
    facts = {"arch_type": extra["arch_type"], "device_name": one.model, "instance_type": machine.extra["instance_type"]}
    return {
        # Both without a line's end, as the driver writes them.
        f"{folder}/core_count": str(extra["physical_core_count"]),
        f"{folder}/connected_devices": ", ".join(map(str, extra["connected_to"])),
        f"{folder}/info/serial_number": f"{0x1A2B3C4D0000 + one.index:016x}\n",
        **attributes(f"{folder}/info/architecture", facts),
        **attributes(folder, {_counter("mem"): 0, _counter("sram"): 0}),
        **attributes(folder, {_in_use(core): 0 for core in range(int(extra["physical_core_count"]))}),
        f"sys/class/neuron_device/neuron{one.index}": Symlink(folder),
        f"dev/neuron{one.index}": "",
    }


def _says(state: ToolState) -> Mapping[str, str]:
    return {"-j": json.dumps([_listed(one) for one in state.machine.devices], indent=1)}


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


simulate = SimulatedBoard(
    hardware=NEURONS,
    device=lambda one: IDS[one.model],
    version="2.22.2.0",
    own=_own,
    tool=Tool(path="bin/neuron-ls", setting="neuronLs", says=_says, garbled="[{"),
    faults={
        LOAD: _loaded,
        "ecc": rewritten(lambda one: f"{_folder(one)}/{_counter('mem')}", lambda value: f"{value or 1}\n"),
        "sram-ecc": rewritten(lambda one: f"{_folder(one)}/{_counter('sram')}", lambda value: f"{value or 1}\n"),
        "garbled": rewritten(lambda one: f"{_folder(one)}/core_count", lambda value: str(value or "many")),
        "no-node": without(lambda one: f"dev/neuron{one.index}"),
    },
).simulate
