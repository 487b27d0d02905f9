"""A simulated machine with Kunlun XPUs: sysfs and dev trees, and an ``xpu-smi`` that prints what Kunlunxin's does."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.machine import MachineDevice
from hami_plugin.simulation.boards import listed, topology
from hami_plugin.simulation.tools import SILENT, Tool, ToolState
from vendors.kunlun.driver import CONTROL, XPUS


def _says(state: ToolState) -> Mapping[str, str]:
    return {
        "-L": "".join(f"XPU {one.index}: {one.model}  {one.uuid}\n" for one in state.listed),
        "-m": "".join(_line(one, state.load(one), silent=state.noted(SILENT, one)) for one in state.listed),
        "topo -m": topology(state.machine, "XPU", lambda _lanes: "XL"),
    }


def _line(one: MachineDevice, load: tuple[int, int], *, silent: bool) -> str:
    """32 columns, as a P800 has them."""
    if silent:
        return f"0000{one.pci} {one.index} {one.index} N/A\n"
    serial, clocks, rest = f"02K15K6200{one.index:02d}", "1450 " * 6, " 0" * 10
    busy, used = load
    memory = f"{used} {one.memory} {busy} 1.0:2.6:1.39.1.7"
    return f'0000{one.pci} {one.index} {one.index} {serial} 36 0 0 0 86 {clocks}2 96 {memory} "{one.model}"{rest}\n'


TOOL = Tool(path="bin/xpu-smi", setting="xpuSmi", says=_says)
simulate = listed(XPUS, "3688", TOOL, control=(CONTROL,)).simulate
