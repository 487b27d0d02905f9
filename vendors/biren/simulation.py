"""A simulated machine with Biren GPUs: sysfs and dev trees, and a ``brsmi`` that prints CSV."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import SimulatedBoard, noted, without
from hami_plugin.simulation.tools import UNLISTED, Tool, ToolState
from hami_plugin.simulation.trees import Files, Symlink, on_bus
from vendors.biren import CONTROL, GPUS, QUERY


def _own(machine: Machine, one: MachineDevice) -> Files:
    bus, name = on_bus(machine, one), f"card_{one.index}"
    return {
        f"{bus}/physical_id": f"{one.index}\n",
        f"{bus}/biren/{name}/device": Symlink(bus),
        f"sys/class/biren/{name}": Symlink(f"{bus}/biren/{name}"),
        f"dev/biren/{name}": "",
    }


def _says(state: ToolState) -> Mapping[str, str]:
    return {
        " ".join(QUERY): "".join(
            f"{one.index}, {one.uuid}, {one.model}, {_memory(state, one)}\n" for one in state.listed
        )
    }


def _memory(state: ToolState, one: MachineDevice) -> str:
    return state.note("garbled", one, "[N/A]") if state.noted("garbled", one) else str(one.memory)


simulate = SimulatedBoard(
    hardware=GPUS,
    device=lambda _one: "ffff",
    version="1.12.0",
    control=(CONTROL,),
    own=_own,
    installed={"driver/lib/libbiren-ml.so.1": ""},
    settings={"driverRoot": "driver"},
    tool=Tool(path="bin/brsmi", setting="brsmi", says=_says, complaint="ERROR_UNINITIALIZED"),
    faults={
        "silent": noted(UNLISTED),
        "garbled": noted("garbled"),
        "no-node": without(lambda one: f"dev/biren/card_{one.index}"),
    },
).simulate
