"""DRS: a container gets one partition of one card, cut by Enflame's agent to the profile that is chosen here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView, whole
from hami_plugin.protocol.grammar import INT64_MAX, from_json, object_of, objects, text_of, to_json
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.devices import (
    Admit,
    Admitted,
    Asked,
    Booked,
    Candidate,
    Charge,
    Context,
    Demand,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Reason,
    Request,
    amount,
    count_request,
    limit_or_request,
)
from hami_plugin.scheduler.engine.policy import Policy, free_cores, free_memory, standard
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules
from vendors.enflame import partitions
from vendors.enflame.partitions import (
    MIB_PER_GB,
    DrsProfile,
    Wanted,
    in_gb,
    number,
    offered_profiles,
    size,
    smallest_profile,
)
from vendors.enflame.settings import EnflameSettings

DEVICE_TYPE = "Enflame"
CAPACITY = "enflame.com/gcu-drs-capacity"


def cards(node: NodeView) -> tuple[DeviceInfo, ...]:
    """The cards of Enflame's own node annotation, each with all profiles of the node."""
    text = node.annotations.get(CAPACITY, "")
    if not text:
        return ()
    listed = object_of({"drs": from_json(text, CAPACITY)}, "drs", CAPACITY) or {}
    items = objects(listed.get("devices"), f"{CAPACITY}.devices")
    named = object_of(listed, "profiles", CAPACITY) or {}
    profiles = {name: text_of(named, name, f"{CAPACITY}.profiles") for name in named}
    slices, memory = (max(sizes, default=0) for sizes in zip(*map(size, ["", *profiles]), strict=True))
    if items and slices <= 0:
        raise WireError(f"{CAPACITY} of node {node.name} has no readable profile", hint="one is called 3g.24gb")
    notes = {"profiles": profiles, "maxSlice": slices}
    return tuple(_card(node, item, place, memory or slices, notes) for place, item in enumerate(items))


def _card(
    node: NodeView, item: Mapping[str, object], place: int, memory: int, notes: Mapping[str, object]
) -> DeviceInfo:
    """``memory`` in GB. A card without a readable index is known by its place in the list."""
    where = f"{CAPACITY}.devices[{place}]"
    text, count = text_of(item, "index", where).strip(), number(item.get("capacity"))
    index = int(text) if text.isascii() and text.isdecimal() else place
    if count <= 0:
        raise WireError(f"{where}.capacity: {item.get('capacity')!r} is no number of slices above 0")
    minor = text_of(item, "minor", where).strip() or str(index)
    return DeviceInfo(
        id=f"{node.name}-enflame-drs-{index}",
        index=index,
        count=count,
        devmem=memory * MIB_PER_GB,
        devcore=100,
        type=DEVICE_TYPE,
        health=True,
        custom={"minor": minor, "index": str(index), **notes},
    )


UUIDS = ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid")
KEYS = AnnotationKeys(allocated="hami.io/enflame-vgpu-devices-allocated", register=CAPACITY)


def family(settings: EnflameSettings, clock: Callable[[], int]) -> Family:
    """Partitions of cards."""
    return Family(
        resources=Resources(
            device_type=DEVICE_TYPE,
            count=settings.drs,
            memory=settings.memory,
            cores=settings.cores,
            ids=partitions.slices,
            sized_by_count=True,
        ),
        rules=SchedulingRules(
            annotations=KEYS,
            policy=Policy(
                request=request(settings),
                gates=(
                    counted_by_the_node,
                    partitions.one_each(settings.drs, settings.memory, settings.cores),
                    some_profile,
                ),
                serves=standard(DEVICE_TYPE, uuids=UUIDS),
                charge=charge,
                checks=(free_memory, cores_if_counted, a_partition_is_free),
                book=book,
                restore=restore,
            ),
            admit=admission(settings),
            node_devices=lambda of: partitions.annotated_cards(of, DEVICE_TYPE, cards(of)),
            patch=patch(clock),
            lock=None,
        ),
    )


def request(settings: EnflameSettings) -> Request:
    """One partition a container: of so many slices, or else the smallest with so much memory and cores."""
    slices = amount(settings.drs, fraction="ignore")
    parts = count_request(
        DEVICE_TYPE,
        count=lambda container: (
            1 if any(limit_or_request(container, part) for part in (settings.memory, settings.cores)) else None
        ),
        memory=amount(settings.memory, fraction="round up"),
        cores=amount(settings.cores, fraction="round up"),
    )

    def read(container: ContainerView) -> Asked:
        exactly = slices(container)
        if exactly:
            if isinstance(exactly, Invalid):
                return exactly
            return Demand(device_type=DEVICE_TYPE, count=1, detail=Wanted(slices=exactly))
        asked = parts(container)
        if not isinstance(asked, Demand):
            return asked
        return Demand(device_type=DEVICE_TYPE, count=1, cores=asked.cores, detail=Wanted(memory=asked.memory or 0))

    return read


def admission(settings: EnflameSettings) -> Admit:
    """Slices outrank memory and cores. What is asked for stands in limits and requests, whichever it was written in."""
    most = {settings.drs: INT64_MAX, settings.memory: INT64_MAX, settings.cores: 100}

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        for resources in ((settings.drs,), (settings.memory, settings.cores)):
            texts = {name: limit_or_request(container, name) for name in resources}
            asked = {name: text for name, text in texts.items() if text is not None}
            for name, text in asked.items():
                if not 0 < _units(text) <= most[name]:
                    return Denied(why=f"container {container.name!r}: {name}={text} is not within 1 to {most[name]}")
            if asked:
                missing = {name: text for name, text in asked.items() if name not in container.requests}
                return Admitted(found=True, limits=asked, requests=missing)
        return Admitted(found=False)

    return admit


def _units(text: str) -> int:
    try:
        return whole(text)
    except ValueError:
        return 0


def some_profile(context: Context) -> Reason | None:
    """The node's cards can be cut to the request."""
    return None if _profile(context) else Reason.MODE


def _profile(context: Context) -> DrsProfile | None:
    return smallest_profile(_wanted(context), context.demand.cores, offered_profiles(context.states))


def _wanted(context: Context) -> Wanted:
    detail = context.demand.detail
    return detail if isinstance(detail, Wanted) else Wanted()


def charge(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge | Reason:
    """The profile's memory and cores, with what the agent needs to cut it."""
    profile, profiles = _profile(context), offered_profiles(context.states)
    if profile is None:
        return Reason.MODE
    return Charge(
        memory=profile.memory * MIB_PER_GB,
        cores=profile.cores,
        notes={
            "profileName": profile.name,
            "profileID": profile.id,
            "drsSlice": profile.slices,
            "minor": state.notes.get("minor", ""),
            "index": state.notes.get("index", ""),
            "requestMem": in_gb(_wanted(context).memory, profiles),
            "requestCore": context.demand.cores,
        },
    )


def cores_if_counted(candidate: Candidate, context: Context, eligible: Sequence[Candidate]) -> Reason | None:
    """Cores are free, where the card has a number of them."""
    return free_cores(candidate, context, eligible) if candidate.state.info.devcore > 0 else None


def book(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    """A partition takes as many slots as it has slices."""
    slots = max(1, number((grant.notes or {}).get("drsSlice")))
    return partitions.book_partition(state, grant, _cut(state, grant), slots)


def restore(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    return partitions.restore_partition(state, grant, pod, _cut(state, grant))


def _cut(state: DeviceState, grant: Grant) -> str:
    return partitions.for_partition(grant, state.notes.get(partitions.CUT, {}))


def a_partition_is_free(candidate: Candidate, context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """Where the node says which partitions have been cut, nobody has one of the profile."""
    if not partitions.is_cut(candidate.state):
        return None
    profile = _profile(context)
    free = partitions.free_partitions(candidate.state).get(profile.name, 0) if profile else 0
    return None if free > 0 else Reason.NO_PARTITION


def counted_by_the_node(context: Context) -> Reason | None:
    """A node that lends partitions counts slices: the kubelet never asks it for memory or cores alone."""
    return Reason.UNCOUNTED if any(map(partitions.is_cut, context.states)) and not _wanted(context).slices else None


def patch(clock: Callable[[], int]) -> Patch:
    """The agent cuts the first container's partition by keys of its own, and finds all containers' in a list."""

    def of_decision(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        pieces = given[family.resources.device_type]
        shares = {
            container.name: {**(piece[0].notes or {})}
            for container, piece in zip(pod.containers, pieces, strict=False)
            if piece
        }
        listed = {
            name: {"allocated": False, "request": notes.get("drsSlice", 1)}
            | {key: notes[key] for key in ("profileID", "profileName") if notes.get(key)}
            for name, notes in sorted(shares.items())
        }
        first = next(iter(shares.values()), {})
        own = {
            "enflame.com/gcu-assigned-index": first.get("index"),
            "enflame.com/gcu-assigned-id": first.get("index"),
            "enflame.com/gcu-assigned-minor": first.get("minor"),
            "enflame.com/gcu-request-size": first.get("drsSlice"),
        }
        return {
            family.rules.annotations.allocated: encode_devices(pieces),
            **unassigned(clock),
            "assigned-containers": to_json(listed, "assigned-containers"),
            **{key: str(value) for key, value in own.items() if value},
        }

    return of_decision


def unassigned(clock: Callable[[], int]) -> Mapping[str, str]:
    """What tells Enflame's agent that a pod waits for its devices."""
    return {"enflame.com/gcu-assigned": "false", "enflame.com/gcu-assigned-time": str(clock())}
