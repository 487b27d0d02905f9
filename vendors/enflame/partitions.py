"""DRS: the profiles that a card can be cut to, the partitions that have been cut, and which one a share takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.protocol.grammar import from_json, int_of, object_of, to_json
from hami_plugin.protocol.keys import OWN
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import requesting_containers
from hami_plugin.scheduler.engine.devices import (
    INT32_MAX,
    WHOLE,
    Booked,
    Context,
    DeviceState,
    Reason,
    restore_grant,
    subtract_grant,
)
from hami_plugin.sdk import Cuttable

MIB_PER_GB = 1024
MAX_SIZE = INT32_MAX // MIB_PER_GB
"""So many slices or GB no card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsProfile:
    """A partition: ``memory`` in GB, ``cores`` in percent of a card, rounded up. ``id`` is the agent's name for it."""

    name: str
    id: str
    slices: int
    memory: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Exactly so many ``slices``; else at least so much ``memory``, of which the unit shows only beside a profile."""

    slices: int = 0
    memory: int = 0


def offered_profiles(states: Sequence[DeviceState]) -> tuple[DrsProfile, ...]:
    """The profiles of these cards, the smallest first."""
    ids = {name: str(one) for state in states for name, one in (state.notes.get("profiles") or {}).items()}
    sizes = {name: size(name) for name in sorted(ids) if all(0 < part <= MAX_SIZE for part in size(name))}
    most = max((number(state.notes.get("maxSlice")) for state in states), default=0)
    most = most if most > 0 else max((slices for slices, _ in sizes.values()), default=0)
    found = [
        DrsProfile(name=name, id=ids[name], slices=slices, memory=memory, cores=-(-WHOLE * slices // most))
        for name, (slices, memory) in sizes.items()
    ]
    return tuple(sorted(found, key=lambda profile: (profile.slices, profile.memory)))


def smallest_profile(wanted: Wanted, cores: int, profiles: Sequence[DrsProfile]) -> DrsProfile | None:
    """The smallest profile that satisfies a request; None when none does."""
    if wanted.slices:
        return next((profile for profile in profiles if profile.slices == wanted.slices), None)
    memory = in_gb(wanted.memory, profiles)
    return next((profile for profile in profiles if profile.memory >= memory and profile.cores >= cores), None)


def in_gb(memory: int, profiles: Sequence[DrsProfile]) -> int:
    """An amount of memory of which only the size tells the unit: more than two of the largest profiles are MiB."""
    largest = profiles[-1].memory if profiles else 0
    return -(-memory // MIB_PER_GB) if largest and memory > 2 * largest else memory


def size(name: str) -> tuple[int, int]:
    """Slices and GB of a profile by its name; 0 for what cannot be read."""
    slices, dot, rest = name.strip().lower().partition(".")
    if not dot:
        return 0, 0
    count = number(slices.removesuffix("g"))
    return (count, number(rest.split(".")[0].removesuffix("gb"))) if count else (0, 0)


def number(value: object) -> int:
    """A number as agents write it, also as text or with a fraction that does not count; 0 when it is none."""
    match value:
        case bool():
            return 0
        case int() | float() if abs(value) <= INT32_MAX:
            return int(value)
        case str() if re.fullmatch(r"[+-]?[0-9]{1,10}", value.strip()) and abs(int(value)) <= INT32_MAX:
            return int(value)
        case _:
            return 0


SLICES: Final = 6
"""Into how many slices a card can be cut; Enflame's agent knows no other number."""
UNITS: Final = 100
"""What a card has of memory and of cores, in percent of itself."""
CUT, LEFT, ROOM = "partitions", "partitionsLeft", "slicesLeft"
"""What is noted of a card: how many partitions of each profile it has, and how many of those nobody has. Of one that is
cut on demand: the profiles, and how many slices are left.
"""

Sizes = Mapping[str, int]
"""How many partitions there are of each profile."""


def key(device_type: str) -> str:
    """The node's annotation of what has been cut of the cards of a family, by their numbers."""
    return f"{OWN}partitions-{device_type}"


def room_key(device_type: str) -> str:
    """The node's annotation of what may be cut of the cards of a family, by their numbers."""
    return f"{OWN}slices-{device_type}"


def sizes(cut: DrsState | None) -> Sizes:
    """Of one card."""
    return dict(sorted(Counter(one.profile for one in (cut.partitions if cut else ())).items()))


def cut_annotation(
    device_type: str, snapshot: Snapshot, cut_of: Mapping[str, DrsState | None]
) -> Mapping[str, str | None]:
    """The annotation of a node. It says nothing where no card can be cut, nor where the family has none."""
    cards = {str(one.index): sizes(cut_of[one.uuid]) for one in snapshot.devices if cut_of[one.uuid]}
    return {key(device_type): to_json(cards, key(device_type)) if cards else None, room_key(device_type): None}


def annotated_cards(node: NodeView, device_type: str, infos: Iterable[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """The cards with what the node says has been cut of them. Without that, as somebody else would cut them."""
    for where, read in ((room_key(device_type), _room), (key(device_type), _counts)):
        if text := node.annotations.get(where, ""):
            cards = object_of({"cards": from_json(text, where)}, "cards", where) or {}
            pairs = ((info, object_of(cards, str(info.index), where) or {}) for info in infos)
            return tuple(replace(info, custom={**(info.custom or {}), **read(of, where)}) for info, of in pairs)
    return tuple(infos)


def _counts(of_card: Mapping[str, object], where: str) -> Mapping[str, object]:
    return {CUT: {profile: int_of(of_card, profile, where) for profile in of_card}}


def _room(of_card: Mapping[str, object], where: str) -> Mapping[str, object]:
    profiles = object_of(of_card, "profiles", where) or {}
    return room_notes(profiles, int_of(of_card, "slices", where))


def room_notes(profiles: Iterable[str], slices: int) -> Mapping[str, object]:
    """What is noted of a card that is cut on demand, with so many slices left."""
    return {CUT: {name: 1 for name in sorted(profiles) if size(name)[0] > 0}, ROOM: slices}


def room(device_type: str, snapshot: Snapshot, cuttable: Mapping[str, Cuttable]) -> Mapping[str, str | None]:
    """The annotation of a node that cuts on demand: each card's profiles with their slices, and what is left of it.

    Without ``cuttable``, by what the tool says of the cards.
    """
    cards = {}
    for device in snapshot.devices:
        known = cuttable.get(device.uuid)
        cut = None if known else cut_of(device)
        names = [one.name for one in known.profiles] if known else list(cut.profiles) if cut else []
        there = [one.profile for one in (known.blocked if known else cut.partitions if cut else ())]
        profiles = {name: size(name)[0] for name in sorted(names) if size(name)[0] > 0}
        if profiles:
            cards[str(device.index)] = {"profiles": profiles, "slices": slices_left(there)}
    return {room_key(device_type): to_json(cards, room_key(device_type)) if cards else None}


def slices_left(there: Iterable[str]) -> int:
    """Of a card with partitions of these profiles."""
    return max(0, SLICES - sum(size(profile)[0] for profile in there))


def for_percent(percent: int, cut: Sizes) -> str:
    """The profile whose partitions serve so much of a card: the smallest that is enough. Empty where none is.

    It depends on what has been cut alone, not on what is free, so that scheduler and node count the same whatever the
    order in which pods come and go.
    """
    enough = [name for name, count in cut.items() if count > 0 and size(name)[0] * UNITS >= percent * SLICES]
    return min(enough, key=size, default="")


def for_partition(grant: Grant, cut: Sizes) -> str:
    """The profile of a grant that says its size: slices by cores, which are rounded up, and GB by memory."""
    wanted = (max(1, grant.cores * SLICES // UNITS), grant.memory // MIB_PER_GB)
    return next((name for name in cut if size(name) == wanted), "")


def lend_partition(device: Device, cut: DrsState | None, profile: str, grant: Grant, others: Iterable[Grant]) -> Grant:
    """The first partition of the profile that nobody else has. Without one, the grant has none."""
    have = {(other.notes or {}).get("partition") for other in others if other.uuid == device.uuid}
    free = (one.uuid for one in (cut.partitions if cut else ()) if one.profile == profile and one.uuid not in have)
    found = next(free, None)
    return replace(grant, notes={**(grant.notes or {}), "partition": found}) if found else grant


def is_cut(state: DeviceState) -> bool:
    """Whether the node says what has been cut of the card."""
    return CUT in state.notes


def free_partitions(state: DeviceState) -> Sizes:
    """Partitions that nobody has."""
    counts: Sizes = state.notes.get(LEFT, state.notes.get(CUT, {}))
    if ROOM in state.notes:
        return {profile: max(0, state.notes[ROOM]) // size(profile)[0] for profile in counts}
    return counts


def _without(state: DeviceState, profile: str) -> DeviceState:
    """The card with one partition less."""
    if not is_cut(state) or not profile:
        return state
    if ROOM in state.notes:
        return replace(state, notes={**state.notes, ROOM: state.notes[ROOM] - size(profile)[0]})
    counts = free_partitions(state)
    return replace(state, notes={**state.notes, LEFT: {**counts, profile: counts.get(profile, 0) - 1}})


def one_each(*resources: str) -> Callable[[Context], Reason | None]:
    """Where partitions are lent, a pod has one: what runtimes are told names one partition, and so does a decision.
    Where they are cut on demand, each container may have one.

    The gate of a family whose containers ask for one of ``resources``.
    """

    def gate(context: Context) -> Reason | None:
        if any(ROOM in state.notes for state in context.states):
            return Reason.ONE_PARTITION if context.demand.count > 1 else None
        cut = any(map(is_cut, context.states))
        return Reason.ONE_PARTITION if cut and asks_for_several(context.pod, context.demand.count, resources) else None

    return gate


def asks_for_several(pod: PodView, count: int, resources: Sequence[str]) -> bool:
    """Whether a pod asks for more than one partition: of ``count`` cards, or for several containers."""
    return count > 1 or len(requesting_containers(pod, *resources)) > 1


def book_partition(state: DeviceState, grant: Grant, profile: str, slots: int = 1) -> Booked:
    """The share, and its partition."""
    return _without(subtract_grant(state, grant, slots=slots), profile), grant


def restore_partition(state: DeviceState, grant: Grant, pod: PodView, profile: str) -> DeviceState:
    """What a pod has already."""
    return _without(restore_grant(state, grant, pod), profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsInstance:
    """A partition that has been cut out of a card. ``number`` is the tool's for it."""

    profile: str
    uuid: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsState:
    """How a card can be cut: the tool's ids of profiles by name, and what has been cut already."""

    profiles: Mapping[str, str]
    partitions: tuple[DrsInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gcu:
    """A device's ``traits``: the tool's number for it, its serial number, and how it can be cut."""

    index: int
    serial: str = ""
    cut: DrsState | None = None


def cut_of(device: Device) -> DrsState | None:
    """How the tool says that a device can be cut."""
    return device.traits.cut if isinstance(device.traits, Gcu) else None


def slices(grant: Grant) -> int:
    """How many slices a partition has; its cores are so many of the card's, rounded up to a percent."""
    return max(1, grant.cores * SLICES // UNITS)
