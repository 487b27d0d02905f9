"""How Neuron devices and their cores are requested, chosen and written down.

``DeviceInfo.devcore`` and the cores of grants are bit masks of a device's cores; those of demands are numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_plugin.errors import WireError
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    Admitted,
    Asked,
    Candidate,
    Charge,
    Context,
    Demand,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Reason,
    amount,
    capacity,
    from_capacity,
    limit_or_request,
    restore_grant,
)
from hami_plugin.scheduler.engine.policy import Policy, Selection, consecutive, first, standard
from hami_plugin.sdk import (
    AnnotationKeys,
    Family,
    Resources,
    SchedulingRules,
    Units,
    both_keys,
)
from vendors.awsneuron.settings import AwsNeuronSettings

KIND = "AWSNodeType"

DEVICE_TYPE: Final = "AWSNeuron"

WHOLE = "whole devices"
SELECTORS = ("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid")
ON_A_RING = consecutive(lambda _count: 1)
ON_A_TORUS = consecutive(lambda count: count if count in (4, 8, 16) else None)
"""The groups in which a Trainium machine's devices are neighbours on its torus."""

MAX_CORES: Final = 30
"""Of one device: what a grant's bits have room for."""


def request(settings: AwsNeuronSettings, container: ContainerView) -> Asked:
    """So many whole devices; else so many cores, of one device or all of several."""
    count, most = amount(settings.count, least=1)(container), settings.cores_per_device
    if isinstance(count, Invalid):
        return count
    if count:
        return Demand(device_type=DEVICE_TYPE, count=count, cores=most, detail=WHOLE)
    cores = amount(settings.cores, least=1)(container)
    if cores is None or isinstance(cores, Invalid):
        return cores
    devices, left = divmod(cores, most)
    if devices and left:
        why = f"is not 1 or a multiple of {most}, the cores of a device; the next number that works is"
        return Invalid(resource=settings.cores, text=str(cores), why=f"{why} {(devices + 1) * most}")
    return Demand(device_type=DEVICE_TYPE, count=devices or 1, cores=most if devices else cores)


def on_this_node(context: Context) -> tuple[int, int] | None:
    """How many devices, and cores of each, the demand means where devices have this node's number of cores."""
    demand, most = context.demand, max((state.info.devcore.bit_length() for state in context.states), default=0)
    if demand.detail == WHOLE:
        return demand.count, most
    cores = demand.count * demand.cores
    if cores <= most:
        return 1, cores
    return (cores // most, most) if most and cores % most == 0 else None


def splits(context: Context) -> Reason | None:
    """More cores than a device has must be all of several devices."""
    return None if on_this_node(context) else Reason.NO_CORES


def charge(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge | Reason:
    """Neighbouring cores, the lowest that are free. Of several devices each must be idle."""
    count, cores = on_this_node(context) or (0, 0)
    if count > 1 and state.slots:
        return Reason.EXCLUSIVE
    mask = lowest(cores, state.info.devcore & ~state.cores)
    return Reason.NO_CORES if mask is None else Charge(cores=mask, notes={"cores": state.info.devcore.bit_length()})


def lowest(cores: int, free: int) -> int | None:
    """The lowest run of so many bits in the mask."""
    run = (1 << cores) - 1
    return next((run << start for start in range(free.bit_length()) if free >> start & run == run), None)


def neighbours(eligible: Sequence[Candidate], context: Context) -> Selection:
    """One: the first. Several: consecutive ones on Inferentia's ring, one of the aligned groups everywhere else."""
    count, _ = on_this_node(context) or (0, 0)
    kind = str(context.states[0].notes.get(KIND, "")) if context.states else ""
    select = first if count == 1 else ON_A_RING if "inf" in kind.lower() else ON_A_TORUS
    return select(eligible, replace(context, demand=replace(context.demand, count=count)))


def restore(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """Masks are joined: two that overlap must not add up to one that leaves other cores free."""
    return replace(restore_grant(state, grant, pod), cores=state.cores | grant.cores)


def device(settings: AwsNeuronSettings, node: NodeView, number: int, count: int) -> DeviceInfo:
    """One of the ``count`` devices among which the node's cores are divided. WireError when those are too many."""
    total = capacity(node, settings.cores)
    cores = total // count
    if cores > MAX_CORES:
        message = f"node {node.name} tells of {total} {settings.cores} on {count} {settings.count}"
        raise WireError(f"{message}; no device has more than {MAX_CORES}")
    return DeviceInfo(
        id=name(node.name, number),
        index=number,
        count=cores,
        devcore=(1 << cores) - 1,
        type=DEVICE_TYPE,
        health=True,
        vendor=DEVICE_TYPE,
        custom={KIND: node.labels.get("node.kubernetes.io/instance-type", "")},
    )


def ids(grant: Grant, most: int) -> Iterator[int]:
    """The node-wide numbers of the cores in a grant. ``most`` is how many a device has, if the grant does not say."""
    most = (grant.notes or {}).get("cores", most)
    return (grant.index * most + bit for bit in range(most) if grant.cores >> bit & 1)


def families(settings: AwsNeuronSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """The one family of this vendor. ``clock`` tells the time of a decision, in nanoseconds since 1970."""

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        asked = request(settings, container)
        return Denied(why=str(asked)) if isinstance(asked, Invalid) else Admitted(found=asked is not None)

    def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        """What AWS's device plugin reads: numbers of devices, or of cores, over all containers."""
        numbers: list[int] = []
        kind: dict[str, str] = {}
        for container, piece in zip(pod.containers, given[family.resources.device_type], strict=False):
            whole = limit_or_request(container, settings.count) is not None
            for grant in piece:
                numbers += [grant.index] if whole else ids(grant, settings.cores_per_device)
            kind |= {} if whole or not piece else {"NEURON_RESOURCE_TYPE": settings.cores}
        announced = {
            "AWS_NEURON_IDS": ",".join(map(str, numbers)),
            "NEURON_ALLOC_TIME": str(clock()),
            "NEURON_ALLOCATED": "false",
            "aws.amazon.com/predicate-node": pod.annotations.get(ASSIGNED_NODE, ""),
        }
        return {**both_keys(family, pod, given), **kind, **(announced if numbers else {})}

    policy = Policy(
        request=lambda container: request(settings, container),
        gates=(splits,),
        serves=standard(DEVICE_TYPE, uuids=SELECTORS),
        charge=charge,
        checks=(),
        select=neighbours,
        restore=restore,
    )
    family = Family(
        resources=resources(settings),
        rules=SchedulingRules(
            annotations=AnnotationKeys(allocated="hami.io/aws-neuron-devices-allocated"),
            policy=policy,
            admit=admit,
            node_devices=from_capacity(settings.count, lambda *asked: device(settings, *asked)),
            patch=patch,
            lock=None,
        ),
    )
    return (family,)


def resources(settings: AwsNeuronSettings) -> Resources:
    """Devices, and beside them their cores."""
    cores = Units(
        resource=settings.cores,
        of_device=lambda device: chip(device).cores,
        of_grant=lambda grant: grant.cores.bit_count(),
    )
    return Resources(
        device_type=DEVICE_TYPE, count=settings.count, cores=settings.cores, cores_are_bits=True, units=(cores,)
    )


def name(node: str, number: int) -> str:
    """What HAMi's scheduler calls a device: it counts them, and the node's agent has no say in it."""
    return f"{node}-{DEVICE_TYPE}-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronChip:
    """A device's ``traits``: its logical cores, and the devices that it has a link to, as often as it has links."""

    cores: int
    neighbours: tuple[int, ...] = ()
    architecture: str = ""
    instance_type: str = ""
    serial: str = ""


def chip(device: Device) -> NeuronChip:
    """The traits of a Neuron device; of one that never answered, no cores."""
    return device.traits if isinstance(device.traits, NeuronChip) else NeuronChip(cores=0)
