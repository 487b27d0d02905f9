"""A simulated machine with Vastai cards: sysfs and dev trees, and a ``vasmi`` that prints JSON.

A profile's devices are dies; their key ``card`` is the serial number of the card that they are on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import SimulatedBoard, noted, without
from hami_plugin.simulation.tools import UNLISTED, Tool, ToolState
from hami_plugin.simulation.trees import Files
from vendors.vastai import CONTROL, DIES, QUERY


def _own(_machine: Machine, one: MachineDevice) -> Files:
    return {f"dev/vacc{one.index}": "", f"dev/va{one.index}_ctl": ""}


def _says(state: ToolState) -> Mapping[str, str]:
    return {" ".join(QUERY): json.dumps({"elem": [_element(state, one) for one in state.listed]})}


def _element(state: ToolState, one: MachineDevice) -> Mapping[str, object]:
    memory = state.note("garbled", one, "N/A") if state.noted("garbled", one) else f"{one.memory} MiB"
    return {"pci_bus": one.pci, "sn": one.extra["card"], "vals": {"Physical": {"value": memory}}}


simulate = SimulatedBoard(
    hardware=DIES,
    device=lambda _one: DIES.devices[0],
    control=CONTROL,
    own=_own,
    tool=Tool(path="bin/vasmi", setting="vasmi", says=_says),
    faults={
        "silent": noted(UNLISTED),
        "garbled": noted("garbled"),
        "no-node": without(lambda one: f"dev/vacc{one.index}"),
    },
).simulate
