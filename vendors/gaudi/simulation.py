"""A simulated machine with Gaudi accelerators: sysfs and dev trees, and an ``hl-smi`` that prints what Intel's does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import listed
from hami_plugin.simulation.tools import SILENT, Tool, ToolState
from hami_plugin.simulation.trees import Files, Symlink, on_bus
from vendors.gaudi import COLUMNS, CONTROL, HARDWARE, IN_USE, LOAD_QUERY, MEMORY, QUERY


def _shown(machine: Machine, one: MachineDevice) -> Files:
    return {
        f"dev/{CONTROL.format(one.index)}": "",
        f"sys/class/{HARDWARE.sysfs_class}{one.index}/device": Symlink(on_bus(machine, one)),
    }


def _says(state: ToolState) -> Mapping[str, str]:
    """The tool's table. Of an accelerator that is silent it prints no numbers."""
    header = ", ".join(COLUMNS).replace(MEMORY, f"{MEMORY} [MiB]")
    lines = (
        f"{one.uuid}, {one.model}, {one.pci}, {one.extra['module_id']}, "
        f"{'N/A' if state.noted(SILENT, one) else f'{one.memory} MiB'}"
        for one in state.listed
    )
    in_use = (f"{one.pci}, {used} MiB, {busy} %" for one in state.listed for busy, used in [state.load(one)])
    load = "\n".join([", ".join(IN_USE), *in_use, ""])
    return {" ".join(QUERY): "\n".join([header, *lines, ""]), " ".join(LOAD_QUERY): load}


def _id(one: MachineDevice) -> str:
    return "1060" if one.model.startswith("HL-3") else "1020"


TOOL = Tool(path="bin/hl-smi", setting="hlSmi", says=_says)
simulate = replace(listed(HARDWARE, "", TOOL, more=_shown), device=_id).simulate
