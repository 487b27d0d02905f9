"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from functools import partial

from cdi.spec import ContainerEdits
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide, Vendor, serving
from vendors.awsneuron.driver import NEURONS, open_driver
from vendors.awsneuron.rules import DEVICE_TYPE, KIND, chip, families
from vendors.awsneuron.settings import AwsNeuronSettings


def node_side(settings: AwsNeuronSettings, _family: Family) -> NodeSide:
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


VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    noun="NEURON",
    settings=AwsNeuronSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=NEURONS.present,
    machines=("aws-neuron",),
)
