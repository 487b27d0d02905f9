"""The node's half of the MLU family: what the kubelet counts, and what a container receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cdi.edits import ContainerEdits, Mount
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.requests import is_part
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from hami_plugin.sdk.tools import ToolError
from vendors.cambricon.devices import Looker
from vendors.cambricon.names import DEVICE_TYPE, MLUS, PROFILE, SLOTS, UNIT, profile
from vendors.cambricon.settings import CambriconSettings
from vendors.cambricon.tool import Cnmon

CONTROL = ("cambricon_ctl", "cambricon_gdr")
BESIDE = ("cambricon_ipcm", "cambr-msgq:", "cambr-rpc:", "cmsg_ctrl", "commu")
"""Nodes that an MLU has beside its own, depending on its generation; its number follows."""


def open_driver(settings: CambriconSettings, paths: HostPaths) -> Driver:
    """Cambricon's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    tool = Cnmon(settings.cnmon)
    return PollingDriver(Looker(paths=roots, tool=tool), partial(links, roots, tool))


def links(paths: HostPaths, tool: Cnmon, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus, and the MLU-Links that ``cnmon`` tells of, each counted as one."""
    problems = []
    try:
        linked = tool.linked()
    except ToolError as error:
        linked = frozenset()
        problems.append(f"MLU-Links are not known: {error}")
    return distances(
        devices,
        MLUS.plugged(paths),
        lanes=lambda a, b: int((a.index, b.index) in linked),
        fabric="MLK",
        problems=problems,
    )


def node_side(settings: CambriconSettings) -> NodeSide:
    """MLUs that containers share.

    It registers nothing: HAMi's scheduler counts MLUs by the capacity of cores and memory.
    """
    return NodeSide(
        whole_only=settings.whole_only("an sMLU instance of Cambricon's own agent"),
        replicas=lambda _device: SLOTS if settings.unlimited_shares else 1,
        register=register,
        inject=inject,
    ).delivered(settings, device_edits, shared_edits)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """The MLU as HAMi's scheduler makes it up from the node's capacity."""
    return DeviceInfo.of(device, DEVICE_TYPE, count=SLOTS, memory=device.memory // UNIT * UNIT)


def device_edits(settings: CambriconSettings, device: Device, host: HostFiles) -> ContainerEdits:
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    own = nodes.need(f"cambricon_dev{device.minor}", whose=device.uuid)
    return own.merged(nodes.take(*(f"{kind}{device.minor}" for kind in BESIDE)))


def shared_edits(settings: CambriconSettings, host: HostFiles) -> ContainerEdits:
    """The driver's control nodes, and its tool."""
    nodes = DeviceNodes(host=host, root=settings.dev_root).take(*CONTROL)
    if not host.is_file(settings.cnmon):
        return nodes
    return nodes.merged(ContainerEdits(mounts=(Mount(host_path=str(settings.cnmon), container_path="/usr/bin/cnmon"),)))


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which MLUs Cambricon's own runtime would add, and for a part of one, how much of it."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    env = {"CAMBRICON_VISIBLE_DEVICES": ",".join(str(share.device.index) for share in shares)}
    parts = [share for share in shares if is_part(register(share.device, False), share.grant.memory, share.grant.cores)]
    if parts:
        env[PROFILE] = ",".join(profile(s.device.index, s.grant.cores, s.grant.memory) for s in parts)
    return Injection(edits=ContainerEdits(env=env))
