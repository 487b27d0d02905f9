"""The node's half of the Biren family: what the kubelet counts, and what a container receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cdi.edits import ContainerEdits, Mount
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from vendors.biren.devices import DEVICE_TYPE, Looker, places
from vendors.biren.settings import BirenSettings

CONTROL = "biren-m"
"""The module's own node, from version 1.12 on."""


def open_driver(settings: BirenSettings, paths: HostPaths) -> Driver:
    """Biren's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(Looker(roots, settings.brsmi), partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus. Which GPUs have a BLink between them is told by nothing that is documented."""
    return distances(devices, places(paths).values(), fabric="BLink")


def node_side(settings: BirenSettings) -> NodeSide:
    """Whole GPUs, as Biren's own agent serves them."""
    return NodeSide(register=register, reports=True, inject=inject).delivered(settings, device_edits, shared_edits)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """One container for each: HAMi's scheduler books neither memory nor cores of these."""
    return DeviceInfo.of(device, DEVICE_TYPE, numa=device.numa or 0)


def device_edits(settings: BirenSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The GPU's node."""
    return DeviceNodes(host=host, root=settings.dev_root).need(f"biren/card_{device.index}", whose=device.uuid)


def shared_edits(settings: BirenSettings, host: HostFiles) -> ContainerEdits:
    """The control node, and the driver's libraries."""
    nodes = DeviceNodes(host=host, root=settings.dev_root).take(CONTROL)
    root = str(settings.driver_root)
    if not host.exists(root):
        return nodes
    return nodes.merged(ContainerEdits(mounts=(Mount(host_path=root, container_path=root),)))


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which GPUs these are, in the words of Biren's agent and of its container toolkit."""
    numbers = sorted(share.device.index for share in assignment.shares)
    env = {
        "BR_PHY_CARDS": ",".join(f"card_{number}" for number in numbers),
        "BIREN_VISIBLE_DEVICES": ",".join(map(str, numbers)),
    }
    return Injection(edits=ContainerEdits(env=env))
