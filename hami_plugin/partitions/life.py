"""The states of a partition, their transitions, and the free placements of a card. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hami_plugin.sdk.partitions import NOWHERE, Partition, Placement, Profile, unoccupied


class State(StrEnum):
    """``FREE`` and ``DESTROYED`` describe an empty placement: no entry is kept."""

    FREE = "free"
    RESERVED = "reserved"
    CREATING = "creating"
    READY = "ready"
    ASSIGNED = "assigned"
    DRAINING = "draining"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    FAILED = "failed"
    LEAKED = "leaked"
    FOREIGN = "foreign"
    LOST = "lost"


class PartitionEvent(StrEnum):
    """What happens to a partition."""

    RESERVE = "a pod's decision names the place"
    INTEND = "Allocate asks for it"
    MADE = "all calls have succeeded, and a listing has it"
    FAIL = "a call has failed"
    HAND_OUT = "a container is answered"
    END = "nobody needs it any more"
    DUE = "the grace or the pause is over"
    IN_USE = "somebody has it open"
    GONE = "it does not exist, and nobody needs it"
    LOSE = "it does not exist, and somebody needs it"
    FIND = "a listing has what nobody here has made"
    LEAK = "a listing has what nobody here has made, and all partitions are ours"
    ADOPT = "what is listed is reserved for a living pod"


_S, _E = State, PartitionEvent
TRANSITIONS: Mapping[tuple[State, PartitionEvent], State] = {
    (_S.FREE, _E.RESERVE): _S.RESERVED,
    (_S.FREE, _E.FIND): _S.FOREIGN,
    (_S.FREE, _E.LEAK): _S.LEAKED,
    (_S.FREE, _E.ADOPT): _S.READY,
    (_S.RESERVED, _E.INTEND): _S.CREATING,
    (_S.RESERVED, _E.END): _S.FREE,
    (_S.CREATING, _E.MADE): _S.READY,
    (_S.CREATING, _E.FAIL): _S.FAILED,
    (_S.CREATING, _E.END): _S.DRAINING,
    (_S.CREATING, _E.GONE): _S.FREE,
    (_S.CREATING, _E.FIND): _S.FOREIGN,
    (_S.READY, _E.HAND_OUT): _S.ASSIGNED,
    (_S.READY, _E.END): _S.DRAINING,
    (_S.READY, _E.LOSE): _S.LOST,
    (_S.READY, _E.GONE): _S.DESTROYED,
    (_S.ASSIGNED, _E.HAND_OUT): _S.ASSIGNED,
    (_S.ASSIGNED, _E.END): _S.DRAINING,
    (_S.ASSIGNED, _E.LOSE): _S.LOST,
    (_S.ASSIGNED, _E.GONE): _S.DESTROYED,
    (_S.DRAINING, _E.ADOPT): _S.READY,
    (_S.DRAINING, _E.DUE): _S.DESTROYING,
    (_S.DRAINING, _E.GONE): _S.DESTROYED,
    (_S.DESTROYING, _E.IN_USE): _S.DRAINING,
    (_S.DESTROYING, _E.FAIL): _S.DRAINING,
    (_S.DESTROYING, _E.GONE): _S.DESTROYED,
    (_S.FAILED, _E.FAIL): _S.FAILED,
    (_S.FAILED, _E.GONE): _S.FREE,
    (_S.LEAKED, _E.END): _S.DRAINING,
    (_S.LEAKED, _E.GONE): _S.DESTROYED,
    (_S.LEAKED, _E.ADOPT): _S.READY,
    (_S.FOREIGN, _E.GONE): _S.DESTROYED,
    (_S.FOREIGN, _E.ADOPT): _S.READY,
    (_S.FOREIGN, _E.LEAK): _S.LEAKED,
    (_S.LOST, _E.ADOPT): _S.READY,
    (_S.LOST, _E.END): _S.DRAINING,
    (_S.LOST, _E.GONE): _S.FREE,
}
"""All legal transitions. Anything else is the caller's bug."""

ABSENT = frozenset({State.FREE, State.RESERVED, State.DESTROYED, State.LOST})
"""The card has nothing of it."""
BLOCKING = frozenset({State.DRAINING, State.DESTROYING, State.FAILED, State.LEAKED, State.FOREIGN})
"""It occupies its placement, though no pod that a scheduler counts has it."""
ENDING = frozenset({State.DRAINING, State.FAILED})
"""It is to be destroyed, and no attempt is running."""
_ON_THE_WAY = frozenset({State.DRAINING, State.DESTROYING})


def next_state(state: State, event: PartitionEvent) -> State:
    """The next state. ValueError where ``event`` cannot happen to it."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a partition that is {state} cannot change because {event}") from None


OF_CLAIM = "claim:"
"""Before a ResourceClaim's name, where an owner has a pod's: no pod is called so."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Owner:
    """A container's share: ``device`` counts its partitions. Name and namespace are for people and PodResources.

    A ResourceClaim's request is an owner too: ``uid`` is the claim's then, and ``container`` the request.
    """

    uid: str
    container: str
    device: int
    namespace: str = field(default="", compare=False)
    pod: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}[{self.device}]"

    @property
    def of_claim(self) -> bool:
        return self.pod.startswith(OF_CLAIM)


Identity = tuple[str, int, int, tuple[tuple[str, int], ...]]
"""A listed partition's UUID, placement, and ids: enough to tell it from any other on the card."""


def identity(partition: Partition) -> Identity:
    place = partition.placement
    return (partition.uuid, place.start, place.size, tuple(sorted(partition.ids.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The record of one partition. ``number`` identifies it for good; ``since`` and ``made`` are Unix times.

    ``before``: what its card had when the creation was journalled. ``boot``: the boot id it was created in; after a
    reboot the entry is void. ``attempts``: consecutive failures to destroy it, with the last ``reason``.
    """

    number: int
    state: State
    card: str
    profile: str
    placement: Placement
    owner: Owner | None = None
    uuid: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)
    before: tuple[Identity, ...] = ()
    boot: str = ""
    made: float = 0.0
    since: float = 0.0
    attempts: int = 0
    reason: str = ""

    def to(self, event: PartitionEvent, *, now: float, **changes: Any) -> Entry:
        """The entry after ``event``."""
        state = next_state(self.state, event)
        since = self.since if state is self.state or {state, self.state} <= _ON_THE_WAY else now
        return replace(self, state=state, since=since, **changes)

    def identified(self, partition: Partition) -> Entry:
        """With the uuid and ids of a listing."""
        return replace(self, uuid=partition.uuid, ids=dict(partition.ids))

    @property
    def partition(self) -> Partition:
        return Partition(
            card=self.card, profile=self.profile, placement=self.placement, uuid=self.uuid, ids=dict(self.ids)
        )

    def takes(self, placement: Placement) -> bool:
        """Whether it occupies a part of this range of its card."""
        return self.state not in ABSENT and self.placement.overlaps(placement)

    def is_listed_as(self, partition: Partition) -> bool:
        """Whether a listed partition is this one, or what is left of it."""
        if partition.card != self.card or partition.placement != self.placement:
            return False
        if partition.uuid:
            return partition.uuid == self.uuid
        return bool(partition.ids) and partition.ids.items() <= self.ids.items()


def blocked_partitions(entries: Iterable[Entry]) -> Mapping[str, tuple[Partition, ...]]:
    """By card, the partitions that occupy it and that no scheduler counts."""
    found: dict[str, list[Partition]] = {}
    for entry in sorted(entries, key=lambda one: (one.placement, one.number)):
        if entry.state in BLOCKING:
            found.setdefault(entry.card, []).append(entry.partition)
    return {card: tuple(there) for card, there in sorted(found.items())}


def free_places(
    profile: Profile, profiles: Sequence[Profile], taken: Iterable[tuple[str, Placement]]
) -> list[Placement]:
    """The free legal placements of a profile. ``taken`` are (profile name, placement) pairs of the card.

    Every slice of an unknown profile counts as a compute slice: too few placements are better than too many.
    """
    known = {one.name: one for one in profiles}
    there = list(taken)
    compute = sum(known[name].compute if name in known else place.size for name, place in there)
    most = _slices(profiles)
    same = Counter(name for name, _place in there)[profile.name]
    if same >= profile.limit or compute + profile.compute > most:
        return []
    if any(own > left for own, left in _sums_left(profile, known, there)):
        return []
    return unoccupied(profile.placements, [place for _name, place in there])


def _sums_left(
    profile: Profile, known: Mapping[str, Profile], there: Iterable[tuple[str, Placement]]
) -> list[tuple[int, int]]:
    """How much a profile takes of each other sum of its card, and how much is left of that."""
    names = [name for name, _place in there if name in known]
    return [
        (own, most - sum(known[one].sums.get(name, (0, 0))[0] for one in names))
        for name, (own, most) in profile.sums.items()
    ]


def _slices(profiles: Sequence[Profile]) -> int:
    """A card's compute slices, taken from its profiles; without placements, the most that one profile may have."""
    return max((one.compute * (one.limit if one.placements == (NOWHERE,) else 1) for one in profiles), default=0)


def free_ratio(left: Iterable[tuple[Profile, int]]) -> float:
    """The free part of a card's placements, from 0 to 1, each weighted with its slices."""
    possible = total = 0.0
    for profile, count in left:
        placed = profile.placements != (NOWHERE,)
        weight = max((place.size for place in profile.placements), default=0) if placed else profile.compute
        most = len(profile.placements) if placed else profile.limit
        total += weight if most else 0
        possible += weight * count / most if most else 0
    return possible / total if total else 0.0


def placeable(profiles: Sequence[Profile], entries: Iterable[Entry]) -> Iterator[tuple[Profile, int]]:
    """Each profile with its number of free placements on one card."""
    taken = [(entry.profile, entry.placement) for entry in entries if entry.state not in ABSENT]
    for profile in profiles:
        count = len(free_places(profile, profiles, taken))
        if count and profile.placements == (NOWHERE,):
            known = {one.name: one for one in profiles}
            left = _slices(profiles) - sum(known[name].compute for name, _place in taken if name in known)
            same = sum(name == profile.name for name, _place in taken)
            sums = [left // own for own, left in _sums_left(profile, known, taken) if own]
            count = min(profile.limit - same, left // max(1, profile.compute), *sums)
        yield profile, count
