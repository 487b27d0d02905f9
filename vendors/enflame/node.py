"""The node's half of Enflame's families: cards are served whole, or shared, or as partitions; one way on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from cdi.edits import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.protocol.grammar import to_json
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from vendors.enflame import partitions
from vendors.enflame.capacity import CAPACITY, DEVICE_TYPE
from vendors.enflame.devices import GCUS, Card, Looker
from vendors.enflame.profiles import MIB_PER_GB, size
from vendors.enflame.settings import EnflameSettings
from vendors.enflame.tool import Efsmi

WHOLE, SHARED = "GCU", "vGCU"
NAMES = {"whole": (WHOLE, "GCU"), "shared": (SHARED, "enflame"), "partitions": (DEVICE_TYPE, "enflame-drs")}
"""By way of serving: the family's word, and what is in the scheduler's names of its cards."""

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


def open_driver(settings: EnflameSettings, paths: HostPaths) -> Driver:
    """Enflame's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    looker = Looker(
        paths=roots,
        tool=Efsmi(settings.efsmi),
        serve=settings.serve,
        called=lambda way, number: (NAMES[way][0], f"{paths.node}-{NAMES[way][1]}-{number}"),
    )
    return PollingDriver(looker, partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus. Links between cards (ESL) are not told by any file or table."""
    return distances(devices, GCUS.plugged(paths))


def node_side(settings: EnflameSettings, device_type: str) -> NodeSide:
    """What all ways have in common."""
    common = NodeSide(inject=partial(inject, settings), absent=ABSENT[settings.serve].get(device_type, ""))
    return common.delivered(settings, device_edits, shared_edits)


def card(device: Device) -> Card:
    return device.traits if isinstance(device.traits, Card) else Card(index=device.index)


def partitioned(device: Device, _legacy: bool) -> DeviceInfo:
    """A card as Enflame's own annotation describes it."""
    cut = card(device).cut
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


def slices(grant: Grant) -> int:
    """How many slices a partition has; its cores are so many of the card's, rounded up to a percent."""
    return max(1, grant.cores * partitions.SLICES // partitions.UNITS)


def slices_cut(device: Device) -> int:
    """How many slices of a card are in partitions."""
    cut = card(device).cut
    return sum(size(one.profile)[0] for one in cut.partitions) if cut else 0


def cut_cards(device_type: str, snapshot: Snapshot, _taken: AbstractSet[str]) -> Mapping[str, str | None]:
    """What has been cut of the family's cards."""
    return partitions.told(device_type, snapshot, {one.uuid: card(one).cut for one in snapshot.devices})


def place(grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """The first partition of the granted size that nobody else has. Without one, the grant has none."""
    cut = card(device).cut
    return partitions.lent(device, cut, partitions.for_partition(grant, partitions.sizes(cut)), grant, others)


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
        if share.device.family == WHOLE or card(share.device).cut is None:
            continue
        resources = (
            (settings.drs, settings.memory, settings.cores)
            if share.device.family == DEVICE_TYPE
            else (settings.shared,)
        )
        if partitions.several(assignment.pod, len(shares), resources):
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
