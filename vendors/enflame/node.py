"""The node's half of Enflame's families: cards are served whole, or shared, or as partitions; one way on each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cdi.edits import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.hardware import distances
from hami_plugin.host.nodes import DeviceNodes
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.looking import LookingDriver
from hami_plugin.model.device import Device
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.vendor import Driver, Family, Injection
from hami_plugin.wire.grammar import to_json
from hami_plugin.wire.nodes import DeviceInfo
from vendors.enflame.capacity import CAPACITY, WORD
from vendors.enflame.devices import GCUS, Card, Looker
from vendors.enflame.profiles import MIB_PER_GB, size
from vendors.enflame.settings import EnflameSettings
from vendors.enflame.tool import Efsmi

SLICES = 6
"""Into how many slices a card can be cut; Enflame's agent knows no other number."""
NAMES = {"whole": ("GCU", "GCU"), "shared": ("vGCU", "enflame"), "partitions": (WORD, "enflame-drs")}
"""By way of serving: the family's word, and what is in the scheduler's names of its cards."""


def open_driver(settings: EnflameSettings, paths: HostPaths) -> Driver:
    """Enflame's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    word, middle = NAMES[settings.serve]
    looker = Looker(
        paths=roots,
        tool=Efsmi(settings.efsmi),
        word=word,
        name=lambda number: f"{paths.node}-{middle}-{number}",
        cut=settings.serve == "partitions",
    )
    return LookingDriver(looker, partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus. Links between cards (ESL) are not told by any file or table."""
    return distances(devices, GCUS.plugged(paths))


def served(settings: EnflameSettings, family: Family) -> Family:
    """What all ways have in common."""
    return replace(family.delivered(settings, device_edits, shared_edits), inject=inject)


def card(device: Device) -> Card:
    return device.traits if isinstance(device.traits, Card) else Card(index=device.index)


def partitioned(device: Device, _legacy: bool) -> DeviceInfo:
    """A card as Enflame's own annotation describes it."""
    cut = card(device).cut
    profiles = dict(cut.profiles) if cut else {}
    slices, memory = (max(sizes, default=0) for sizes in zip(*map(size, ["", *profiles]), strict=True))
    return DeviceInfo.of(
        device,
        WORD,
        count=SLICES,
        memory=(memory or slices) * MIB_PER_GB,
        custom={"minor": str(device.minor), "index": str(device.index), "profiles": profiles, "maxSlice": slices},
    )


def capacity(infos: Sequence[DeviceInfo]) -> str:
    """Enflame's own annotation: healthy cards by their numbers, and the profiles, which all cards of a node share."""
    offered = [info for info in infos if info.health and info.custom]
    devices = [
        {"index": info.custom["index"], "minor": info.custom["minor"], "capacity": info.count}
        for info in offered
        if info.custom
    ]
    profiles = {name: one for info in offered if info.custom for name, one in info.custom["profiles"].items()}
    return to_json({"devices": devices, "profiles": profiles}, CAPACITY)


def slices(grant: Grant) -> int:
    """How many slices a partition has; its cores are so many of the card's, rounded up to a percent."""
    return max(1, grant.cores * SLICES // 100)


def place(grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """The first partition of the granted size that nobody else has. Without one, the grant has none."""
    taken = {(other.notes or {}).get("partition") for other in others}
    cut = card(device).cut
    free = (
        one.uuid
        for one in (cut.partitions if cut else ())
        if size(one.profile) == (slices(grant), grant.memory // MIB_PER_GB) and one.uuid not in taken
    )
    found = next(free, None)
    return replace(grant, notes={**(grant.notes or {}), "partition": found}) if found else grant


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


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which cards Enflame's own runtime would add, and which partition of its card the container has."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    env = {"ENFLAME_VISIBLE_DEVICES": ",".join(str(share.device.minor) for share in shares)}
    for share in shares:
        if share.device.family != WORD:
            continue
        partition = (share.grant.notes or {}).get("partition")
        if not partition:
            wanted = f"{slices(share.grant)}g.{share.grant.memory // MIB_PER_GB}gb"
            raise RefusedError(
                RefusalReason.NOT_PREPARED,
                f"pod {assignment.pod.key} is granted a partition {wanted} of {share.device.uuid}, and none is free",
                hint=f"cut one on the node: efsmi -i {share.device.index} --drs --create-instance <the profile's id>",
            )
        env["TOPS_VISIBLE_DEVICES"] = f"DRS-{partition}"
    return Injection(edits=ContainerEdits(env=env))
