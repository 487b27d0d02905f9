"""The node's half of the Vastai family: what the kubelet counts, and what a container receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cdi.edits import ContainerEdits
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from vendors.vastai.dies import CARD, DEVICE_TYPE, DIES, STRATEGY, dies
from vendors.vastai.look import Looker
from vendors.vastai.settings import VastaiSettings

CONTROL = ("vatools", "va_sync")
OF_A_DIE = ("vacc{}", "vastai_video{}", "va{}_ctl", "va_video{}", "vastai{}_version")
"""Nodes that a die has, depending on the generation of its driver."""


def open_driver(settings: VastaiSettings, paths: HostPaths) -> Driver:
    """Vastai's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(Looker(roots, settings.vasmi, whole=settings.strategy == "card"), partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus, between the first dies."""
    return distances(devices, DIES.plugged(paths))


def node_side(settings: VastaiSettings) -> NodeSide:
    """One container for each card or die."""
    node = NodeSide(register=partial(register, settings), reports=True, inject=inject)
    return node.delivered(settings, device_edits, shared_edits)


def register(settings: VastaiSettings, device: Device, _legacy: bool) -> DeviceInfo:
    """With what HAMi's scheduler keeps a container's dies together by."""
    custom = {STRATEGY: settings.strategy, CARD: dies(device).card}
    return DeviceInfo.of(device, DEVICE_TYPE, numa=device.numa or 0, custom=custom)


def device_edits(settings: VastaiSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The nodes of its dies, each of which must have some."""
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    found = [nodes.take(*(name.format(number) for name in OF_A_DIE)) for number in dies(device).numbers]
    if not found or not all(edits.device_nodes for edits in found):
        raise HamiError(f"{device.uuid} has a die without nodes on this host", hint="its driver makes them")
    return ContainerEdits().merged(*found)


def shared_edits(settings: VastaiSettings, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).take(*CONTROL)


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which dies these are, for Vastai's runtime."""
    numbers = sorted(number for share in assignment.shares for number in dies(share.device).numbers)
    return Injection(edits=ContainerEdits(env={"VACC_VISIBLE_DEVICES": ",".join(map(str, numbers))}))
