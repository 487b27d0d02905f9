"""What a node registers of MLUs, and what a container receives: MLUs, or sMLU instances that are made for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.delivery import Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.grammar import from_json, int_of, objects, text_of, to_json
from hami_plugin.protocol.keys import OWN
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import Question, decided_shares
from hami_plugin.scheduler.engine.devices import is_part
from hami_plugin.sdk import (
    NOWHERE,
    DeviceNodes,
    Family,
    Injection,
    ModeSide,
    NodeSide,
    Partition,
    PartitionSide,
    Reservation,
    Sized,
)
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.rules import DEVICE_TYPE, PROFILE, UNIT, WAITING, profile
from vendors.cambricon.settings import DYNAMIC, SLOTS, CambriconSettings
from vendors.cambricon.smlu import SmluModes, SmluPartitions, amounts, amounts_of

CONTROL = ("cambricon_ctl", "cambricon_gdr")
BESIDE = ("cambricon_ipcm", "cambr-msgq:", "cambr-rpc:", "cmsg_ctrl", "commu")
"""Nodes that an MLU has beside its own, depending on its generation; its number follows."""


def node_side(settings: CambriconSettings, family: Family) -> NodeSide:
    """MLUs that containers share.

    It registers nothing: HAMi's scheduler counts MLUs by the capacity of cores and memory.
    """
    shared = settings.cuts or settings.unlimited_shares
    return NodeSide(
        whole_only="" if shared else settings.whole_only(f"an sMLU instance (mode: {DYNAMIC})"),
        partitions=partition_side(settings, family) if settings.cuts else former_side(settings, family),
        modes=mode_side(settings),
        replicas=lambda _device: SLOTS if shared else 1,
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


MADE = "CAMBRICON_DSMLU_PROFILE_INSTANCE"
"""The pod's annotation with its first instance, as Cambricon's own agent writes and reads it."""
NAMES = f"{OWN}smlu-instances"
"""The same of all of its instances, with their UUIDs."""
_NODE = re.compile(r"/dev/((?!\.)[A-Za-z0-9_.:-]{1,64}(?:/(?!\.)[A-Za-z0-9_.:-]{1,64}){0,2})")
_UUID = re.compile(r"MLU-[0-9A-Za-z-]{1,36}")


def partition_side(settings: CambriconSettings, family: Family) -> PartitionSide:
    """In this mode each MLU is cut, as by Cambricon's own agent: all of one is an instance too."""
    library = Cndev(settings.cndev)
    return PartitionSide(
        open=lambda host: SmluPartitions(library, host.paths.node),
        reserved=partial(reservations, family),
        wanted=wanted_reservations,
        inject=partial(inject_instances, settings, library),
        names=partial(names, family),
        edits=partial(instance_edits, settings, library),
        by_claims=True,
        sized=Sized(profile=amounts, amounts=amounts_of, unit=UNIT),
    )


def former_side(settings: CambriconSettings, family: Family) -> PartitionSide | None:
    """For ``smluMode: disabled``: what was made for pods goes with them, and nothing is made any more."""
    if settings.smlu_mode != "disabled":
        return None

    def known(pod: PodView) -> list[Reservation]:
        return [one for one in reservations(family, pod) if one.uuid]

    return replace(
        partition_side(settings, family), reserved=known, wanted=lambda _assignment: (), by_claims=False, sized=None
    )


def mode_side(settings: CambriconSettings) -> ModeSide | None:
    """The MLUs' sMLU mode, where ``smluMode`` has it switched."""
    if settings.smlu_mode == "keep":
        return None
    on = settings.smlu_mode == "enabled"
    return ModeSide(
        name="sMLU",
        open=lambda host: SmluModes(Cndev(settings.cndev), host.paths.node, settings.cnmon),
        wanted=lambda _device: on,
    )


def reservations(family: Family, pod: PodView) -> list[Reservation]:
    """What the decision grants each container, with the driver's names where the pod has them. ``WireError``."""
    keys = family.rules.annotations
    if not pod.annotations.get(keys.allocated):
        return []
    question = Question(resource=family.resources.count, to_allocate=keys.to_allocate, allocated=keys.allocated)
    recorded = _recorded(pod.annotations.get(NAMES, ""))
    return [
        _reservation(claim.container.name, number, grant, recorded)
        for claim in decided_shares(pod, question)
        for number, grant in enumerate(_in_order(claim.grants))
    ]


def wanted_reservations(assignment: Assignment) -> list[Reservation]:
    grants = _in_order([share.grant for share in assignment.shares])
    return [_reservation(assignment.container.name, number, grant, {}) for number, grant in enumerate(grants)]


def _in_order(grants: Sequence[Grant]) -> list[Grant]:
    return sorted(grants, key=lambda grant: grant.uuid)


Recorded = Mapping[tuple[str, int], tuple[str, Mapping[str, int]]]
"""UUID and ids of instances by container, and their number there."""


def _reservation(container: str, number: int, grant: Grant, recorded: Recorded) -> Reservation:
    uuid, ids = recorded.get((container, number), ("", {}))
    profile = amounts(grant.cores, grant.memory)
    return Reservation(
        container=container, device=number, card=grant.uuid, profile=profile, placement=NOWHERE, uuid=uuid, ids=ids
    )


def _recorded(text: str) -> Recorded:
    return {
        (text_of(one, "container", NAMES), int_of(one, "number", NAMES)): (
            text_of(one, "uuid", NAMES),
            {key: int_of(one, key, NAMES) for key in ("profile", "instance")},
        )
        for one in (objects(from_json(text, NAMES), NAMES) if text else ())
    }


def names(_family: Family, _pod: PodView, pairs: Sequence[tuple[Reservation, Partition]]) -> Mapping[str, str]:
    """Cambricon's agent reads the first: profile, handle, card and instance."""
    if not pairs:
        return {}
    every = [{"container": one.container, "number": one.device, "uuid": made.uuid, **made.ids} for one, made in pairs]
    first = pairs[0][1]
    card, shape, instance = int(first.card.rpartition("-")[2]), first.ids["profile"], first.ids["instance"]
    return {
        NAMES: to_json(every, NAMES),
        MADE: f"{shape}_{instance << 8 | card}_{card}_{instance}",
        **dict.fromkeys(WAITING, "true"),
    }


def inject_instances(
    settings: CambriconSettings, library: Cndev, assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> Injection:
    """Nodes, and how much of which MLU they are: the driver holds whoever has them to that."""
    devices = {share.device.uuid: share.device for share in assignment.shares}
    parts = (profile(share.device.index, share.grant.cores, share.grant.memory) for share in assignment.shares)
    edits = ContainerEdits(env={PROFILE: ",".join(parts)})
    if Way.DEVICE_SPECS in settings.delivery.ways:
        own = (instance_edits(settings, library, devices[one.card], one, host) for one in made)
        edits = shared_edits(settings, host).merged(*own, edits)
    return Injection(edits=edits)


def instance_edits(
    settings: CambriconSettings, library: Cndev, device: Device, one: Partition, host: HostFiles
) -> ContainerEdits:
    """An instance's node beside its MLU's. Without it a container would have all of the MLU, or nothing."""
    there = next((each for each in library.instances(device.index) if each.uuid == one.uuid), None)
    node = _NODE.fullmatch(there.node) if there else None
    if node is None or not _UUID.fullmatch(one.uuid):
        raise HamiError(f"CNDev tells no node of {one.uuid[:64]!r}: {there}"[:300])
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    card = nodes.need(f"cambricon_dev{device.minor}", whose=device.uuid)
    return card.merged(nodes.take(f"{BESIDE[0]}{device.minor}"), nodes.need(node[1], whose=one.uuid))
