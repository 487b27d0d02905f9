"""What a node registers and forecasts of MetaX GPUs, and what a container receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.grammar import to_json
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide
from vendors.metax import rules
from vendors.metax.driver import CONTROL, card
from vendors.metax.settings import MetaxSettings
from vendors.metax.zones import forecast_tables

OPTIONAL_CONTROL = ("mxnd", "mxgd")


def node_side(settings: MetaxSettings, family: Family) -> NodeSide:
    """Whole GPUs, or shares, as the family has them."""
    return whole(settings) if family.resources.device_type == rules.WHOLE_TYPE else shared(settings)


def whole(settings: MetaxSettings) -> NodeSide:
    """Whole GPUs. Their scheduler side counts them, and reads from the node what so many would be worth."""
    return NodeSide(
        register=partial(_info, rules.WHOLE_TYPE),
        announce=forecasts,
        inject=inject,
        absent=_but("native", settings),
    ).delivered(settings, device_edits, shared_edits)


def shared(settings: MetaxSettings) -> NodeSide:
    """GPUs to share, with one container each. What gives a container an sGPU is known to MetaX's own runtime alone, so
    that parts are refused, unless containers are trusted with the whole GPU.
    """
    handed = NodeSide().delivered(settings, device_edits, shared_edits)
    return replace(
        handed,
        delivery=settings.shared_delivery,
        register=_shared_info,
        encode=encode,
        inject=inject,
        whole_only=settings.whole_only("an sGPU of MetaX's own agent"),
        absent=_but("sgpu", settings),
    )


def _but(mode: str, settings: MetaxSettings) -> str:
    """Why a node in another mode has none of a family."""
    return "" if settings.mode == mode else f"it has mode: {settings.mode}"


def forecasts(snapshot: Snapshot, taken: AbstractSet[str]) -> Mapping[str, str | None]:
    """MetaX's two tables, for as many GPUs as are healthy and free."""
    free = [card(one).zone for one in snapshot.devices if one.health.offered and one.uuid not in taken]
    worth, cuts = forecast_tables(free)
    tables = {rules.FORECASTS["spread"]: worth, rules.FORECASTS["binpack"]: cuts}
    return {key: to_json(table, key) if snapshot.devices else None for key, table in tables.items()}


def encode(infos: Sequence[DeviceInfo]) -> str:
    """The list that MetaX's agent keeps on the node. What is free is the scheduler's account, and left out."""
    entries = [
        {
            "uuid": info.id,
            "model": (info.custom or {}).get("Model", ""),
            "totalDevCount": info.count,
            "totalCompute": info.devcore,
            "totalVRam": info.devmem,
            "numa": info.numa,
            "healthy": info.health,
            "qosPolicy": (info.custom or {}).get("QosPolicy", ""),
            "linkZone": (info.custom or {}).get("LinkZone", 0),
        }
        for info in sorted(infos, key=lambda info: info.index)
    ]
    return to_json(entries, rules.REGISTER)


def _info(device_type: str, device: Device, _legacy: bool) -> DeviceInfo:
    return DeviceInfo.of(device, device_type, numa=device.numa or 0, vendor=device_type)


def _shared_info(device: Device, legacy: bool) -> DeviceInfo:
    custom = {"QosPolicy": "", "Model": device.model, "LinkZone": card(device).zone}
    return replace(_info(rules.SHARED_TYPE, device, legacy), custom=custom)


def device_edits(settings: MetaxSettings, device: Device, host: HostFiles) -> ContainerEdits:
    nodes = card(device).nodes
    if not nodes:
        raise HamiError(f"{device.uuid} has no nodes that its driver shows", hint="see `mx-smi -L` on the host")
    return DeviceNodes(host=host, root=settings.dev_root).need(*nodes, whose=device.uuid)


def shared_edits(settings: MetaxSettings, host: HostFiles) -> ContainerEdits:
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    mounts = tuple(Mount(host_path=str(one), container_path=str(one)) for one in settings.mounts)
    control = nodes.need(CONTROL, whose="every MetaX GPU").merged(nodes.take(*OPTIONAL_CONTROL))
    return control.merged(ContainerEdits(mounts=mounts))


def inject(_assignment: Assignment, _host: HostFiles) -> Injection:
    """Nothing beside the devices: a container counts the GPUs whose nodes it has, and nobody else is on them."""
    return Injection(edits=ContainerEdits())
