"""A simulated host with MetaX GPUs: sysfs and dev trees, and an ``mx-smi`` that prints lists as MetaX's does."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.boards import SimulatedBoard, noted, without
from hami_plugin.simulation.tools import LOAD, Tool, ToolState
from hami_plugin.simulation.trees import Files, on_bus
from vendors.metax.driver import CONTROL, LINKED
from vendors.metax.injection import OPTIONAL_CONTROL
from vendors.metax.settings import GPUS

IDS = {"MXC500": "4001", "MXC600-A": "4081"}
FIRST_RENDER = 128
HEADER = "=================== MetaX System Management Interface Log ===================\n"


def _own(machine: Machine, one: MachineDevice) -> Files:
    names = f"card{one.index + 1}", f"renderD{FIRST_RENDER + one.index}"
    shown = {f"{on_bus(machine, one)}/drm/{name}/uevent": "\n" for name in names}
    return {**shown, **{f"dev/dri/{name}": "" for name in names}}


def _says(state: ToolState) -> Mapping[str, str]:
    devices = state.machine.devices
    states = (
        f"{_row(one)}    "
        f"{state.note('unavailable', one, 'Unavailable') if state.noted('unavailable', one) else 'Available'}"
        f" (UUID: {one.uuid})\n"
        for one in state.listed
    )
    memory = (
        f"{_row(one)}\n    vis_vram total    : {one.memory * 1024} KB\n"
        f"    vis_vram used     : {state.load(one)[1] * 1024} KB\n"
        for one in devices
    )
    usage = (f"{_row(one)}\n    GPU                 : {state.load(one)[0]} %\n    VPU : 0 %\n" for one in devices)
    return {
        "-L": "".join((HEADER, *states)),
        "--show-memory": "".join((HEADER, *memory)),
        "--show-usage": "".join((HEADER, *usage)),
        "topo -m": f"{HEADER}Attached GPUs    : {len(devices)}\n{_matrix(state.machine)}",
    }


def _matrix(machine: Machine) -> str:
    names = [f"GPU{one.index}" for one in machine.devices]
    lines = ["\t".join(("", *names))]
    for i, name in enumerate(names):
        cells = (LINKED if machine.lanes[i][j] else level for j, level in enumerate(machine.levels[i]))
        lines.append("\t".join((name, *cells)))
    return "\n".join((*lines, ""))


def _row(one: MachineDevice) -> str:
    return f"GPU#{one.index}    {one.model}    {one.pci}"


simulate = SimulatedBoard(
    hardware=GPUS,
    device=lambda one: IDS[one.model],
    driver="METAX",
    version="2.33.0",
    control=(CONTROL, *OPTIONAL_CONTROL),
    own=_own,
    tool=Tool(path="opt/mxdriver/bin/mx-smi", setting="mxSmi", says=_says, complaint="segmentation fault"),
    faults={
        "unavailable": noted("unavailable"),
        LOAD: noted(LOAD),
        "no-node": without(lambda one: f"dev/dri/renderD{FIRST_RENDER + one.index}"),
        "unbound": without(lambda one: f"sys/bus/pci/devices/{one.pci}/drm"),
    },
).simulate
