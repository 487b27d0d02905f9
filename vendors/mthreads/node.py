"""Moore Threads GPUs on their node: found by ``mthreads-gmi`` and on the bus, counted by cards, cores and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cdi.edits import ContainerEdits
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import (
    Card,
    DeviceNodes,
    Fabric,
    Family,
    Hardware,
    NodeSide,
    ToolError,
    address,
    json_object,
    matrix,
    mebibytes,
    read,
)
from vendors.mthreads.family import CARD_CORES, DEVICE_TYPE, UNIT
from vendors.mthreads.settings import MthreadsSettings

T = TypeVar("T")

GPUS = Hardware(title="Moore Threads GPU", vendors=("1ed5",), module="mtgpu", node="mtgpu.")
_BONDED = re.compile(r"MT(\d{1,2})")


def naming(_settings: MthreadsSettings, paths: HostPaths, card: Card) -> tuple[str, str]:
    """The names that HAMi's scheduler makes up."""
    return DEVICE_TYPE, f"{paths.node}-mthreads-{card.index}"


def asked(settings: MthreadsSettings, parse: Callable[[str], T], *arguments: str) -> T:
    return read(settings.mthreads_gmi, parse, *arguments, deadline=settings.tool_seconds)


def list_cards(settings: MthreadsSettings, _paths: HostPaths) -> Sequence[Card | str]:
    """The GPUs of the tool's report."""
    return asked(settings, partial(reported, settings.mthreads_gmi), "-q", "--json")


def reported(tool: Path, printed: str) -> Sequence[Card | str]:
    report = json_object(printed, tool).get("GPU")
    if not isinstance(report, list):
        raise ToolError(f"{tool} reports no list of GPUs")
    return [card(entry) for entry in report]


def card(entry: Any) -> Card | str:
    """One GPU of the report; what is wrong with it, in words, when it names none."""
    if not isinstance(entry, Mapping) or not str(entry.get("Index", "")).isdecimal() or "GPU UUID" not in entry:
        return f"mthreads-gmi tells nothing that names a GPU: {str(entry)[:120]}"
    # Where in an entry the address stands is a matter of the tool's version; nothing else in it looks like one.
    known = Card(
        index=int(entry["Index"]),
        uuid=str(entry["GPU UUID"]),
        model=str(entry.get("Product Name", "")),
        address=address(str(entry)),
    )
    try:
        return replace(known, memory=mebibytes(str(entry["FB Memory Usage"]["Total"])))
    except (KeyError, TypeError, ValueError) as error:
        return replace(known, trouble=f"mthreads-gmi tells no memory of GPU {known.index}: {error}")


def linked(settings: MthreadsSettings) -> Mapping[tuple[int, int], int]:
    """How many MTLinks are bonded between two GPUs; the tool writes ``MT2`` for two."""
    return asked(settings, bonded, "topo", "-m")


def bonded(table: str) -> Mapping[tuple[int, int], int]:
    cells = matrix(table, "GPU")
    return {pair: int(found[1]) for pair, cell in cells.items() if (found := _BONDED.fullmatch(cell))}


FABRIC = Fabric(title="MT", lanes=linked)


def node_side(settings: MthreadsSettings, _family: Family, usual: NodeSide) -> NodeSide:
    """GPUs that containers share. It registers nothing: HAMi's scheduler reads the capacity."""
    return replace(
        usual,
        whole_only=settings.whole_only("Moore Threads' own agent"),
        replicas=lambda _device: settings.split_count if settings.unlimited_shares else 1,
        register=register,
        every_core=lambda _device: CARD_CORES,
        device_edits=lambda device, host: usual.device_edits(device, host).merged(drawing(settings, device, host)),
    )


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """The GPU as HAMi's scheduler makes it up from the node's capacity."""
    return DeviceInfo.of(device, DEVICE_TYPE, count=100, memory=device.memory // UNIT * UNIT, cores=CARD_CORES)


def drawing(settings: MthreadsSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The nodes that the kernel's graphics system has for it."""
    folder = (settings.sysfs_root or host.paths.sysfs) / "bus/pci/devices" / device.pci / "drm"
    names = sorted(f"dri/{one.name}" for one in folder.glob("*") if one.name.startswith(("card", "renderD")))
    return DeviceNodes(host=host, root=settings.dev_root).take(*names)


def env(devices: Sequence[Device]) -> Mapping[str, str]:
    """Which GPUs Moore Threads' own runtime would add, where it is the one that runs the container."""
    return {"MTHREADS_VISIBLE_DEVICES": ",".join(str(device.index) for device in devices)}
