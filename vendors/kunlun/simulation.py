"""A simulated machine with Kunlun XPUs: sysfs and dev trees, and an ``xpu-smi`` that prints what Kunlunxin's does."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.machine import MachineDevice
from hami_plugin.simulation.boards import Board, noted, topology, without
from hami_plugin.simulation.tools import UNLISTED, Told, Tool
from vendors.kunlun.node import CONTROL, XPUS

P800 = "3688"


def _says(told: Told) -> Mapping[str, str]:
    return {
        "-L": "".join(f"XPU {one.index}: {one.model}  {one.uuid}\n" for one in told.listed),
        "-m": "".join(_line(one, silent=told.noted("silent", one)) for one in told.listed),
        "topo -m": topology(told.machine, "XPU", lambda _lanes: "XL"),
    }


def _line(one: MachineDevice, *, silent: bool) -> str:
    """32 columns, as a P800 has them."""
    if silent:
        return f"0000{one.pci} {one.index} {one.index} N/A\n"
    serial, clocks, rest = f"02K15K6200{one.index:02d}", "1450 " * 6, " 0" * 10
    memory = f"0 {one.memory} 0 1.0:2.6:1.39.1.7"
    return f'0000{one.pci} {one.index} {one.index} {serial} 36 0 0 0 86 {clocks}2 96 {memory} "{one.model}"{rest}\n'


simulate = Board(
    vendor=XPUS.vendors[0],
    device=lambda _one: P800,
    driver=XPUS.module,
    module=XPUS.module,
    control=(CONTROL,),
    own=lambda _machine, one: {f"dev/{XPUS.node}{one.index}": ""},
    tool=Tool(path="bin/xpu-smi", setting="xpuSmi", says=_says),
    faults={
        "silent": noted("silent"),
        "unlisted": noted(UNLISTED),
        "no-node": without(lambda one: f"dev/{XPUS.node}{one.index}"),
    },
).simulate
