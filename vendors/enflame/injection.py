"""What a node registers of GCUs, and what a container receives: whole cards, shares or partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.protocol.grammar import to_json
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import (
    DeviceNodes,
    Family,
    Injection,
    ModeSide,
    NodeSide,
    Partition,
    PartitionDriver,
    PartitionSide,
)
from vendors.enflame import on_demand, partitions
from vendors.enflame.drs import CAPACITY, DEVICE_TYPE
from vendors.enflame.on_demand import DrsPartitions
from vendors.enflame.partitions import MIB_PER_GB, SLICES, UNITS, cut_of, size, slices, slices_left
from vendors.enflame.rules import SHARED, WHOLE
from vendors.enflame.settings import EnflameSettings

_UUID = re.compile(r"[0-9A-Za-z-]{1,63}")
_SET = "it has serve: "
_CUT = "cut its cards (efsmi -i N --drs on; then --create-instance) or ask for enflame.com/gcu"
ABSENT: Mapping[str, Mapping[str, str]] = {
    "auto": {
        DEVICE_TYPE: _SET + "auto",
        WHOLE: "its cards are cut into partitions (DRS); ask for a percentage of one",
        SHARED: f"its cards are not cut into partitions (DRS) and nothing else limits a share; {_CUT}",
    },
    "whole": {DEVICE_TYPE: _SET + "whole", SHARED: _SET + "whole"},
    "shared": {DEVICE_TYPE: _SET + "shared", WHOLE: _SET + "shared"},
    "partitions": {WHOLE: _SET + "partitions", SHARED: _SET + "partitions"},
}
"""Why a node that serves its cards in a way has none of the other families."""
KINDS = {WHOLE: "", SHARED: "-share", DEVICE_TYPE: "-drs"}
"""What the families' CDI kinds end in."""


def node_side(settings: EnflameSettings, family: Family) -> NodeSide:
    """Whole cards, shares by percentage, or partitions, as the family has them."""
    absent = ABSENT[settings.serve].get(family.resources.device_type, "")
    common = NodeSide(inject=partial(inject, settings), absent=absent, modes=mode_side(settings, family)).delivered(
        settings, device_edits, shared_edits
    )
    common = replace(common, delivery=delivery(settings, family.resources.device_type))
    if family.resources.device_type == WHOLE:
        return replace(common, register=register_share(WHOLE, slots=1))
    announced = replace(common, announce=partial(cut_cards, settings, family.resources.device_type))
    if settings.on_demand and family.resources.device_type == (SHARED if settings.serve == "auto" else DEVICE_TYPE):
        announced = replace(announced, partitions=partition_side(settings, family.resources.device_type))
    if family.resources.device_type == SHARED:
        if announced.partitions:
            return replace(announced, replicas=lambda _device: SLICES, register=shared_on_demand)
        register = register_share(DEVICE_TYPE, slots=UNITS)
        return replace(announced, replicas=share_replicas, register=register, place=place_share)
    if announced.partitions:
        return replace(announced, replicas=lambda _device: SLICES, register=to_be_cut, encode=capacity)
    return replace(announced, replicas=slices_cut, register=register_drs, encode=capacity, place=place_partition)


def partition_side(settings: EnflameSettings, device_type: str) -> PartitionSide:
    """Partitions that are cut for shares, or for slices."""
    return PartitionSide(
        open=partial(_open, settings, device_type),
        reserved=partial(on_demand.reservations, settings, device_type),
        wanted=on_demand.wanted_reservations,
        inject=partial(inject_made, settings),
        names=on_demand.names,
        without=subtract_blocked,
        announce=partial(partitions.room, device_type),
        edits=lambda device, _partition, host: device_edits(settings, device, host),
        by_claims=True,
        lasting=True,
    )


def delivery(settings: EnflameSettings, device_type: str) -> Delivery:
    """Each family has a CDI kind of its own: `hami.io/gcu` is the whole cards'."""
    return replace(settings.delivery, kind=f"{settings.delivery.kind}{KINDS[device_type]}")


def mode_side(settings: EnflameSettings, family: Family) -> ModeSide | None:
    """The cards' DRS mode, where ``drsMode`` has it switched: of the one family that has them then."""
    on = settings.divided
    served = WHOLE if not on else SHARED if settings.serve == "auto" else DEVICE_TYPE
    if on is None or family.resources.device_type != served:
        return None
    return ModeSide(name="DRS", open=lambda _host: on_demand.DrsModes(settings), wanted=lambda _device: on)


def _open(settings: EnflameSettings, device_type: str, host: HostFiles) -> PartitionDriver:
    return DrsPartitions(settings, f"{host.paths.node}-{on_demand.name_of(device_type)}")


def subtract_blocked(info: DeviceInfo, blocked: Sequence[Partition]) -> DeviceInfo:
    """The card with the slices that are left beside partitions that no scheduler counts."""
    return replace(info, count=min(info.count, slices_left(one.profile for one in blocked)))


def to_be_cut(device: Device, legacy: bool) -> DeviceInfo:
    """A card of which all slices may be cut."""
    info = register_drs(device, legacy)
    return replace(info, count=SLICES, custom={**(info.custom or {}), **_room_of(device)})


def shared_on_demand(device: Device, legacy: bool) -> DeviceInfo:
    """A card of which partitions are cut for shares."""
    return replace(register_share(DEVICE_TYPE, slots=UNITS)(device, legacy), custom=_room_of(device))


def _room_of(device: Device) -> Mapping[str, object]:
    cut = cut_of(device)
    return partitions.room_notes(cut.profiles, slices_left(one.profile for one in cut.partitions)) if cut else {}


def register_drs(device: Device, _legacy: bool) -> DeviceInfo:
    """A card as Enflame's own annotation describes it."""
    cut = cut_of(device)
    profiles = dict(cut.profiles) if cut else {}
    slices, memory = (max(sizes, default=0) for sizes in zip(*map(size, ["", *profiles]), strict=True))
    return DeviceInfo.of(
        device,
        DEVICE_TYPE,
        count=slices_cut(device),
        memory=(memory or slices) * MIB_PER_GB,
        custom={
            "minor": str(device.minor),
            "index": str(device.index),
            "profiles": profiles,
            "maxSlice": slices,
            partitions.CUT: partitions.sizes(cut),
        },
    )


def capacity(infos: Sequence[DeviceInfo]) -> str:
    """Enflame's own annotation: healthy cards that are cut, by their numbers, and the profiles, which all cards share.

    Of each it says how many slices are cut: nobody here cuts more of them when a pod asks.
    """
    offered = [info for info in infos if info.health and info.custom and info.count]
    devices = [
        {"index": info.custom["index"], "minor": info.custom["minor"], "capacity": info.count}
        for info in offered
        if info.custom
    ]
    profiles = {name: one for info in offered if info.custom for name, one in info.custom["profiles"].items()}
    return to_json({"devices": devices, "profiles": profiles}, CAPACITY)


def slices_cut(device: Device) -> int:
    """How many slices of a card are in partitions."""
    cut = cut_of(device)
    return sum(size(one.profile)[0] for one in cut.partitions) if cut else 0


def cut_cards(
    settings: EnflameSettings, device_type: str, snapshot: Snapshot, _taken: AbstractSet[str]
) -> Mapping[str, str | None]:
    """What has been cut of the family's cards, where it is lent."""
    if settings.on_demand:
        return {partitions.key(device_type): None}
    return partitions.cut_annotation(device_type, snapshot, {one.uuid: cut_of(one) for one in snapshot.devices})


def place_partition(grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """The first partition of the granted size that nobody else has. Without one, the grant has none."""
    cut = cut_of(device)
    return partitions.lend_partition(device, cut, partitions.for_partition(grant, partitions.sizes(cut)), grant, others)


def device_edits(settings: EnflameSettings, device: Device, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).need(f"gcu{device.minor}", whose=device.uuid)


def shared_edits(settings: EnflameSettings, host: HostFiles) -> ContainerEdits:
    """The driver's control node, and its tool."""
    nodes = DeviceNodes(host=host, root=settings.dev_root).need("gcuctl", whose="Enflame's driver")
    if not host.is_file(settings.efsmi):
        return nodes
    return nodes.merged(
        ContainerEdits(mounts=(Mount(host_path=str(settings.efsmi), container_path="/usr/sbin/efsmi"),))
    )


def inject(settings: EnflameSettings, assignment: Assignment, _host: HostFiles) -> Injection:
    """Which cards Enflame's own runtime would add, and which partition of its card the container has."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    env = {"ENFLAME_VISIBLE_DEVICES": ",".join(str(share.device.minor) for share in shares)}
    for share in shares:
        if share.device.family == WHOLE or cut_of(share.device) is None:
            continue
        resources = (
            (settings.drs, settings.memory, settings.cores)
            if share.device.family == DEVICE_TYPE
            else (settings.shared,)
        )
        if partitions.asks_for_several(assignment.pod, len(shares), resources):
            raise RefusedError(
                RefusalReason.NOT_PREPARED,
                f"pod {assignment.pod.key} is granted several partitions, and a pod can have one, for one container",
                hint="ask for one card in one container, or serve whole cards",
            )
        partition = (share.grant.notes or {}).get("partition")
        if not partition:
            size_of = f"{slices(share.grant)}g.{share.grant.memory // MIB_PER_GB}gb"
            wanted = size_of if share.device.family == DEVICE_TYPE else f"of {share.grant.memory or partitions.UNITS} %"
            raise RefusedError(
                RefusalReason.NOT_PREPARED,
                f"pod {assignment.pod.key} is granted a partition {wanted} of {share.device.uuid}, and none is free",
                hint=f"cut one on the node: efsmi -i {share.device.index} --drs --create-instance <the profile's id>",
            )
        env["TOPS_VISIBLE_DEVICES"] = f"DRS-{partition}"
    return Injection(edits=ContainerEdits(env=env))


def inject_made(
    settings: EnflameSettings, assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> Injection:
    """The card and the partition that the container is held to."""
    if len(made) > 1:
        raise on_demand.one_only(assignment)
    (share,), (one,) = assignment.shares, made
    if not _UUID.fullmatch(one.uuid):
        raise HamiError(f"efsmi names a partition {one.uuid[:80]!r}, which no container can be told")
    env = {"ENFLAME_VISIBLE_DEVICES": str(share.device.minor), "TOPS_VISIBLE_DEVICES": f"DRS-{one.uuid}"}
    edits = ContainerEdits(env=env)
    if Way.DEVICE_SPECS in settings.delivery.ways:
        edits = edits.merged(shared_edits(settings, host), device_edits(settings, share.device, host))
    return Injection(edits=edits)


def share_replicas(device: Device) -> int:
    """As many containers as there are partitions, or percent."""
    cut = cut_of(device)
    return len(cut.partitions) if cut else UNITS


def place_share(grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """Where partitions have been cut, one that serves the share, and that nobody else has."""
    cut = cut_of(device)
    profile = partitions.for_percent(grant.memory or UNITS, partitions.sizes(cut))
    return partitions.lend_partition(device, cut, profile, grant, others)


def register_share(kind: str, *, slots: int) -> Callable[[Device, bool], DeviceInfo]:
    """A card as HAMi's scheduler makes it up from the node's capacity."""

    def info(device: Device, _legacy: bool) -> DeviceInfo:
        cut = cut_of(device) if kind == DEVICE_TYPE else None
        custom = {partitions.CUT: partitions.sizes(cut)} if cut else None
        return DeviceInfo.of(device, kind, count=slots, memory=UNITS, cores=UNITS, custom=custom)

    return info
