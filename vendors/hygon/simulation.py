"""A simulated host with DCUs: sysfs and dev trees whose NUMA nodes are wrong, and a ``hy-smi`` that knows better."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import SimulatedBoard, loaded, rewritten, without
from hami_plugin.simulation.tools import LOAD, Tool, ToolState
from hami_plugin.simulation.trees import Files, attributes, on_bus
from vendors.hygon.driver import ADDRESS, MIB, NODE, QUESTION
from vendors.hygon.injection import CONTROL, OPTIONAL_CONTROL
from vendors.hygon.settings import DCUS

IDS = {"Z100": "54b7", "K100_AI": "6210"}
BANNER = "================ System Management Interface ================\n"


def _own(machine: Machine, one: MachineDevice) -> Files:
    """Of the bus, sysfs says that it is all at NUMA node 0, as on some hosts."""
    folder, extra = on_bus(machine, one), one.extra
    render, card, units = (int(extra[key]) for key in ("drm_render", "drm_card", "compute_units"))
    facts = {"serial_number": extra["serial"], "product_name": one.model, "mem_info_vram_total": one.memory * MIB}
    idle = {"mem_info_vram_used": 0, "gpu_busy_percent": 0}
    wrong = {"numa_node": 0, "local_cpulist": machine.numa_nodes.get(0, "")}
    properties = {"simd_count": units * 4, "simd_per_cu": 4, "drm_render_minor": render, "vendor_id": 7572}
    lines = "".join(f"{name} {value}\n" for name, value in properties.items())
    return {
        **attributes(folder, {**facts, **idle, **wrong, "unique_id": f"{0x5150 + one.index:016x}"}),
        f"{folder}/ras/umc_err_count": "ue: 0\nce: 0\n",
        **{
            f"{folder}/drm/{name}/dev": f"226:{n}\n"
            for name, n in ((f"card{card}", card), (f"renderD{render}", render))
        },
        f"dev/dri/card{card}": "",
        f"dev/dri/renderD{render}": "",
        f"sys/class/kfd/kfd/topology/nodes/{one.index + len(machine.numa_nodes)}/properties": lines,
    }


def _says(state: ToolState) -> Mapping[str, str]:
    """The tool prints its banner before the JSON, as Hygon's does."""
    cards = {f"card{one.index}": {ADDRESS: one.pci, NODE: str(one.numa)} for one in state.machine.devices}
    return {" ".join(QUESTION): f"{BANNER}{json.dumps(cards)}\n"}


def _bus(one: MachineDevice) -> str:
    return f"sys/bus/pci/devices/{one.pci}"


simulate = SimulatedBoard(
    hardware=DCUS,
    installed={"opt/hyhal/lib/librocm_smi64.so": "", "opt/hygondriver/env.sh": ""},
    settings={"hyhal": "opt/hyhal", "hygonPath": "opt/hygondriver"},
    device=lambda one: IDS[one.model],
    version="6.2.31",
    control=(CONTROL, OPTIONAL_CONTROL),
    own=_own,
    tool=Tool(path="opt/hyhal/bin/hy-smi", setting="hySmi", says=_says, garbled=BANNER),
    faults={
        LOAD: loaded,
        "ecc": rewritten(lambda one: f"{_bus(one)}/ras/umc_err_count", lambda value: f"ue: {value or 1}\nce: 0\n"),
        "garbled": rewritten(lambda one: f"{_bus(one)}/mem_info_vram_total", lambda value: str(value or "much")),
        "no-node": without(lambda one: f"dev/dri/renderD{one.extra['drm_render']}"),
    },
).simulate
