"""The node's half of the Neuron family: what the kubelet counts, and what a container receives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cdi.edits import ContainerEdits
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from vendors.awsneuron.chips import DEVICE_TYPE, NEURONS, chip
from vendors.awsneuron.devices import Looker
from vendors.awsneuron.places import Places
from vendors.awsneuron.settings import AwsNeuronSettings

KIND = "AWSNodeType"


def open_driver(settings: AwsNeuronSettings, paths: HostPaths) -> Driver:
    """The Neuron driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    look = Looker(roots, Places(roots, settings.neuron_ls), settings.logical_core_size)
    return PollingDriver(look, partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """NeuronLinks as the devices list their neighbours, and the distance on the PCI bus where both places are known."""
    return distances(devices, NEURONS.plugged(paths), lanes=lambda a, b: chip(a).neighbours.count(b.index), fabric="NL")


def node_side(settings: AwsNeuronSettings) -> NodeSide:
    """Devices, or cores of one.

    It registers nothing: HAMi's scheduler reads the capacity of both resources, and the instance type's label.
    """
    return NodeSide(
        register=register,
        inject=partial(inject, settings),
        every_core=mask,
    ).delivered(settings, device_edits)


def mask(device: Device) -> int:
    """All cores of a device, a bit for each."""
    return (1 << chip(device).cores) - 1


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """The device as HAMi's scheduler makes it up from the node's capacity."""
    own = chip(device)
    return DeviceInfo.of(
        device,
        DEVICE_TYPE,
        count=own.cores,
        memory=0,
        cores=mask(device),
        vendor=DEVICE_TYPE,
        custom={KIND: own.instance_type},
    )


def device_edits(settings: AwsNeuronSettings, device: Device, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).need(f"neuron{device.index}", whose=device.uuid)


def inject(settings: AwsNeuronSettings, assignment: Assignment, _host: HostFiles) -> Injection:
    """Which devices AWS's own runtime hook would add, and for a container that asked for cores, which ones it has."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    env = {"AWS_NEURON_VISIBLE_DEVICES": ",".join(str(share.device.index) for share in shares)}
    if not assignment.container.amount(settings.count):
        env["NEURON_RT_VISIBLE_CORES"] = ",".join(str(core) for share in shares for core in _cores(share, assignment))
    return Injection(edits=ContainerEdits(env=env))


def _cores(share: Share, assignment: Assignment) -> list[int]:
    """The node-wide numbers of the granted cores."""
    granted, count = share.grant.cores, chip(share.device).cores
    if not granted or granted & ~mask(share.device):
        raise RefusedError(
            RefusalReason.BAD_ANNOTATION,
            f"the decision for pod {assignment.pod.key} grants cores {granted:#b} of {share.device.uuid}, "
            f"which has {count}",
            hint="HAMi's scheduler learns the number of cores from the first Neuron node that it sees",
        )
    return [share.device.index * count + bit for bit in range(count) if granted >> bit & 1]
