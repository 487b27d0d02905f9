"""What a node registers of MLUs, and what a container receives."""

from __future__ import annotations

from cdi.edits import ContainerEdits, Mount
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.requests import is_part
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide
from vendors.cambricon.rules import DEVICE_TYPE, PROFILE, UNIT, profile
from vendors.cambricon.settings import SLOTS, CambriconSettings

CONTROL = ("cambricon_ctl", "cambricon_gdr")
BESIDE = ("cambricon_ipcm", "cambr-msgq:", "cambr-rpc:", "cmsg_ctrl", "commu")
"""Nodes that an MLU has beside its own, depending on its generation; its number follows."""


def node_side(settings: CambriconSettings, _family: Family) -> NodeSide:
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
