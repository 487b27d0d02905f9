"""A simulated machine with Iluvatar GPUs: sysfs and dev trees, and an ``ixsmi`` that prints what Iluvatar's does."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.simulation.boards import listed
from hami_plugin.simulation.tools import SILENT, Tool, ToolState
from vendors.iluvatar import COLUMNS, CONTROL, GPUS, IN_USE, LINK, LOAD_QUERY, QUERY


def _says(state: ToolState) -> Mapping[str, str]:
    """Of a GPU that is silent it tells no numbers."""
    header = ", ".join(COLUMNS).replace("memory.total", "memory.total [MiB]")
    rows = (
        f"{one.index}, {one.uuid}, {one.model}, 0000{one.pci.upper()}, "
        f"{'[N/A]' if state.noted(SILENT, one) else f'{one.memory} MiB'}"
        for one in state.listed
    )
    in_use = (
        f"0000{one.pci.upper()}, {used} MiB, {busy} %" for one in state.listed for busy, used in [state.load(one)]
    )
    load = "\n".join([", ".join(IN_USE).replace("memory.used", "memory.used [MiB]"), *in_use, ""])
    return {" ".join(QUERY): "\n".join([header, *rows, ""]), " ".join(LOAD_QUERY): load}


TOOL = Tool(path="bin/ixsmi", setting="ixsmi", says=_says)
simulate = listed(GPUS, "0003", TOOL, control=(CONTROL, LINK)).simulate
