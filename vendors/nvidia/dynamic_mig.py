"""Cards that are cut into MIG instances for containers, as HAMi 2.10's schedulers place them: the node's part of it.

A pod's annotation places each instance; the node makes it, and adds the driver's names to the same annotation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cdi.spec import ContainerEdits
from hami_plugin.errors import HamiError, RefusalReason, RefusedError, WireError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment
from hami_plugin.model.views import PodView
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile
from hami_plugin.sdk import Injection, ModeSide, Partition, PartitionSide, Placement, Profile, Reservation
from vendors.nvidia.delivery import control_nodes, device_nodes, visible
from vendors.nvidia.host import read_capabilities
from vendors.nvidia.instances import MIG_MODE
from vendors.nvidia.rules import ALLOCATIONS, POD_MODE, MigAllocation, MigInstance, decode_mig, encode_mig
from vendors.nvidia.settings import NvidiaSettings

if TYPE_CHECKING:
    from vendors.nvidia.partitions import MigPartitions

_UUID = re.compile(r"MIG-[0-9A-Za-z-]{1,59}")


def partition_side(settings: NvidiaSettings, card_type: Callable[[str], str]) -> PartitionSide:
    """For ``operatingMode: mig``. ``card_type`` is what schedulers call a model."""
    return PartitionSide(
        open=partial(_open, settings),
        reserved=reservations,
        wanted=wanted_reservations,
        inject=partial(inject, settings, settings.delivery),
        names=names,
        registered=partial(register_profiles, settings),
        edits=partial(instance_edits, settings),
        by_claims=True,
        allowed=lambda device, profiles: _allowed(settings, card_type(device.model), profiles),
    )


def _open(settings: NvidiaSettings, host: HostFiles) -> MigPartitions:
    from vendors.nvidia.partitions import open_partitions  # noqa: PLC0415  # it loads NVIDIA's binding

    return open_partitions(settings, host)


def former_side(settings: NvidiaSettings) -> PartitionSide | None:
    """For ``migMode: disabled``: what was made for pods goes with them, and nothing is made any more."""
    if settings.mig_mode != "disabled":
        return None
    return replace(
        partition_side(settings, str),
        by_claims=False,
        wanted=lambda _assignment: (),
        registered=lambda info, _profiles: info,
    )


def mode_side(settings: NvidiaSettings) -> ModeSide | None:
    """The cards' MIG mode, where ``migMode`` has it switched."""
    if settings.mig_mode == "keep":
        return None
    on = settings.mig_mode == "enabled"

    def wanted_mode(device: Device) -> bool | None:
        return on if not on or device.mode == MIG_MODE else None

    return ModeSide(name="MIG", open=partial(_open, settings), wanted=wanted_mode)


def reservations(pod: PodView) -> list[Reservation]:
    """What the pod's annotation places, for whichever of its containers. ``WireError`` where it cannot be read."""
    return [_reservation(one, pod) for one in decode_mig(pod.annotations.get(ALLOCATIONS, ""))]


def _reservation(one: MigAllocation, pod: PodView) -> Reservation:
    if not 0 <= one.container < len(pod.containers):
        raise WireError(f"{ALLOCATIONS}: pod {pod.key} has no container {one.container}")
    instance = one.instance
    return Reservation(
        container=pod.containers[one.container].name,
        device=one.device,
        card=one.uuid,
        profile=one.profile,
        placement=Placement(start=one.start, size=one.size),
        uuid=instance.uuid if instance else "",
        ids={"gi": instance.gpu_instance, "ci": instance.compute_instance} if instance else {},
    )


def wanted_reservations(assignment: Assignment) -> list[Reservation]:
    """The container's instances in the order of its devices, one for each grant. ``RefusedError`` otherwise."""
    name, pod = assignment.container.name, assignment.pod
    try:
        found = sorted((one for one in reservations(pod) if one.container == name), key=lambda one: one.device)
    except WireError as error:
        raise RefusedError(RefusalReason.BAD_ANNOTATION, str(error)) from error
    granted = sorted(share.grant.uuid for share in assignment.shares if share.device.mode == MIG_MODE)
    if granted and len(granted) < len(assignment.shares):
        message = f'container "{name}" of pod {pod.key} is granted cards that are cut into MIG instances, and others'
        raise RefusedError(RefusalReason.BAD_ANNOTATION, message, hint=f"ask for one kind of them with {POD_MODE}")
    if sorted(one.card for one in found) != granted:
        message = f'container "{name}" of pod {pod.key} is granted {granted}, and {ALLOCATIONS} places other instances'
        raise RefusedError(
            RefusalReason.BAD_ANNOTATION, message, hint="let a scheduler place it that knows MIG: HAMi 2.10, or ours"
        )
    return found


def names(pod: PodView, pairs: Sequence[tuple[Reservation, Partition]]) -> Mapping[str, str]:
    """The pod's annotation with the driver's names of each instance that exists: all three of one, or none."""
    made = {(one.container, one.device): partition for one, partition in pairs}
    named = [_named(one, pod, made) for one in decode_mig(pod.annotations.get(ALLOCATIONS, ""))]
    return {ALLOCATIONS: encode_mig(named)}


def _named(one: MigAllocation, pod: PodView, made: Mapping[tuple[str, int], Partition]) -> MigAllocation:
    found = made.get((_reservation(one, pod).container, one.device))
    if found is None or not found.uuid or not {"gi", "ci"} <= found.ids.keys():
        return one
    instance = MigInstance(uuid=found.uuid, gpu_instance=found.ids["gi"], compute_instance=found.ids["ci"])
    return replace(one, instance=instance)


def register_profiles(settings: NvidiaSettings, info: DeviceInfo, profiles: Sequence[Profile]) -> DeviceInfo:
    """With what its card may be cut into; a card without any takes no container."""
    if info.mode != MIG_MODE:
        return info
    allowed = _allowed(settings, info.type, profiles)
    offered = tuple(_profile(one, profiles) for one in allowed)
    count = max((one.limit for one in allowed), default=0)
    return replace(info, mig_profiles=offered, count=min(info.count, count), health=info.health and bool(offered))


def _allowed(settings: NvidiaSettings, model: str, profiles: Sequence[Profile]) -> list[Profile]:
    """Of the first entry of the list that names the model; without one, all without media or graphics extensions."""
    groups = (one.profiles for one in settings.mig_profile_allowlist if any(name in model for name in one.models))
    listed = next(groups, None)
    if listed is None:
        if settings.mig_profile_allowlist:
            return []
        return [one for one in profiles if not re.search(r"[+]|-me", one.name)]
    known = {one.name: one for one in profiles}
    return [known[name] for name in listed if name in known]


def _profile(one: Profile, profiles: Sequence[Profile]) -> MigProfile:
    most = max((each.compute for each in profiles), default=1) or 1
    return MigProfile(
        name=one.name,
        memory=one.memory,
        cores=one.cores or -(-100 * one.compute // most),
        slices=one.compute,
        placements=tuple((place.start, place.size) for place in one.placements),
    )


def inject(
    settings: NvidiaSettings, delivery: Delivery, assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> Injection:
    """The instances and their nodes. HAMi-core is not needed: an instance has no more than its own."""
    uuids = [one.uuid for one in made]
    odd = next((uuid for uuid in uuids if not _UUID.fullmatch(uuid)), None)
    if odd:
        raise HamiError(f"the driver names an instance {odd[:80]!r}, which no container can be told")
    edits = visible(delivery, uuids)
    if settings.pass_device_specs or Way.DEVICE_SPECS in delivery.ways:
        edits = edits.merged(_nodes(settings, assignment, made, host))
    return Injection(edits=edits)


def instance_edits(settings: NvidiaSettings, device: Device, one: Partition, host: HostFiles) -> ContainerEdits:
    """An instance's own nodes: its card's, and the two of its capabilities."""
    return device_nodes(settings, _names(settings, device, one, host))


def _nodes(
    settings: NvidiaSettings, assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> ContainerEdits:
    """The control nodes, and those of each instance."""
    devices = {share.device.uuid: share.device for share in assignment.shares}
    found = control_nodes(settings, host)
    for one in made:
        found += _names(settings, devices[one.card], one, host)
    return device_nodes(settings, found)


def _names(settings: NvidiaSettings, device: Device, one: Partition, host: HostFiles) -> list[str]:
    own = read_capabilities(settings.proc_root or host.paths.proc).nodes(
        device.minor or 0, one.ids["gi"], one.ids["ci"]
    )
    if device.minor is None or not own:
        raise HamiError(f"the kernel lists no device nodes of {one.uuid} of {device.uuid}")
    return [f"nvidia{device.minor}", *own]
