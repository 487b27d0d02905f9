"""A simulated machine with Moore Threads GPUs: sysfs and dev trees, and a fake ``mthreads-gmi`` with its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import listed, topology
from hami_plugin.simulation.tools import SILENT, Tool, ToolState
from hami_plugin.simulation.trees import Files, on_bus
from vendors.mthreads import GPUS


def _drawn(machine: Machine, one: MachineDevice) -> Files:
    """Its nodes to draw come after those of the host's own graphics card."""
    names = f"card{one.index + 1}", f"renderD{one.index + 129}"
    drawn = {f"{on_bus(machine, one)}/drm/{name}/dev": "226:0\n" for name in names}
    return {**drawn, **{f"dev/dri/{name}": "" for name in names}}


def _says(state: ToolState) -> Mapping[str, str]:
    entries = [_entry(one, state.load(one), silent=state.noted(SILENT, one)) for one in state.listed]
    report = json.dumps({"Attached GPUs": len(entries), "GPU": entries}, indent=1)
    return {"-q --json": report, "topo -m": topology(state.machine, "GPU", lambda lanes: f"MT{lanes}")}


def _entry(one: MachineDevice, load: tuple[int, int], *, silent: bool) -> dict[str, Any]:
    busy, used = load
    return {
        "Index": str(one.index),
        "Product Name": one.model,
        "GPU UUID": one.uuid,
        "PCI": {"Bus ID": f"0000{one.pci.upper()}"},
        "FB Memory Usage": {"Total": "N/A" if silent else f"{one.memory}MiB", "Used": f"{used}MiB"},
        "Utilization": {"Gpu": f"{busy}%", "Memory": "0%"},
    }


TOOL = Tool(path="bin/mthreads-gmi", setting="mthreadsGmi", says=_says)
simulate = listed(GPUS, "0323", TOOL, more=_drawn).simulate
