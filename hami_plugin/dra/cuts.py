"""What a card may be cut into, as devices over the counters of that card: made when a claim is made ready.

One counter stands for each slice of the card, one for its compute slices, and one for a profile of which a card may
have fewer than have a place on it. So the scheduler gives out together what the card can have together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from hami_plugin.dra.claims import PreparedShare
from hami_plugin.dra.slices import (
    CORES,
    MAX_TEXT,
    MEMORY,
    Offered,
    PoolContents,
    Taints,
    device_entry,
    device_name,
    location_attributes,
    taints_of,
)
from hami_plugin.partitions.life import Entry, free_places
from hami_plugin.sdk import Family
from hami_plugin.sdk.partitions import NOWHERE, Placement, Profile, Sized, overlaps

PARTITION = "partition"
"""A partition's type."""
MAX_COUNTERS = 32
COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProfiles:
    """A card with all that it may be cut into, and the names of the profiles that may be asked for.

    ``whole``: it is given out as it is too, while nothing is cut of it.
    """

    card: Offered
    profiles: tuple[Profile, ...]
    allowed: AbstractSet[str]
    whole: bool = False

    @property
    def compute(self) -> int:
        """The card's compute slices."""
        return max((_compute_of(one) for one in self.profiles), default=0)

    @property
    def sums(self) -> Mapping[str, int]:
        """What else it has that partitions take, by its name."""
        return {name: most for one in self.profiles for name, (_own, most) in one.sums.items()}


def _compute_of(profile: Profile) -> int:
    """What a card has at least, by a profile of it."""
    return profile.compute * (profile.limit if profile.placements == (NOWHERE,) else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A partition that may be made, or is there. ``number`` is its first slice, or counts those without a place."""

    card: Offered
    profile: Profile
    placement: Placement
    number: int

    @property
    def name(self) -> str:
        return device_name(f"{self.card.device.uuid}/{self.profile.name}/{self.number}")


def cuts(cards: Iterable[CardProfiles]) -> tuple[Cut, ...]:
    """All of them, in the order in which they are to be given out.

    Smaller profiles come first, for who asks for an amount, then one card after the other, and on a card the places
    that take least from other profiles.
    """
    found = [
        (profile.memory, profile.compute, profile.name, *_order(one, cut), cut)
        for one in cards
        for profile in one.profiles
        if profile.name in one.allowed
        for cut in _of_profile(one, profile)
    ]
    return tuple(key[-1] for key in sorted(found, key=lambda key: key[:-1]))


def _order(one: CardProfiles, cut: Cut) -> tuple[int, int, int]:
    """Its card, how many places of the card's profiles it takes, and of equal ones the last."""
    if cut.placement == NOWHERE:
        return one.card.device.index, 0, cut.number
    taken = sum(place.size for profile in one.profiles for place in profile.placements if cut.placement.overlaps(place))
    return one.card.device.index, taken, -cut.placement.start


def _of_profile(one: CardProfiles, profile: Profile) -> Iterator[Cut]:
    if profile.placements == (NOWHERE,):
        most = min(profile.limit, one.compute // max(1, profile.compute))
        for number in range(most):
            yield Cut(card=one.card, profile=profile, placement=NOWHERE, number=number)
    else:
        for place in profile.placements:
            yield Cut(card=one.card, profile=profile, placement=place, number=place.start)


def cut_entry(one: Cut) -> dict[str, Any]:
    """The partition in a slice, without its counters."""
    device, profile = one.card.device, one.profile
    attributes: dict[str, Any] = {
        "type": {"string": PARTITION},
        "profile": {"string": profile.name[:MAX_TEXT]},
        "index": {"int": device.index},
        **({"placement": {"int": one.placement.start}} if one.placement != NOWHERE else {}),
        **location_attributes(device),
    }
    for name, text in (("parentUUID", device.uuid), ("productName", device.model)):
        if text.isascii() and text.isprintable() and 0 < len(text) <= MAX_TEXT:
            attributes[name] = {"string": text}
    amounts = {MEMORY: f"{profile.memory}Mi", CORES: str(profile.cores)}
    given = {MEMORY: profile.memory, CORES: profile.cores}
    capacity = {name: {"value": text} for name, text in amounts.items() if given[name]}
    return {"name": one.name, "attributes": attributes, **({"capacity": capacity} if capacity else {})}


def _counted(one: CardProfiles) -> Mapping[str, int]:
    """The profiles of which the card may have fewer than places allow, and how many, as far as counters go."""
    placed = [profile for profile in one.profiles if profile.placements != (NOWHERE,)]
    slices = max((place.start + place.size for profile in placed for place in profile.placements), default=0)
    limited = {profile.name: profile.limit for profile in placed if profile.limit < _most(profile)}
    unplaced = {p.name: p.limit for p in one.profiles if p not in placed and p.limit * p.compute < one.compute}
    return dict(list({**limited, **unplaced}.items())[: max(0, MAX_COUNTERS - 1 - slices - len(one.sums))])


def _most(profile: Profile) -> int:
    """How many of a profile have a place beside each other."""
    taken: list[Placement] = []
    for place in sorted(profile.placements, key=lambda place: place.start + place.size):
        if not overlaps(place, taken):
            taken.append(place)
    return len(taken)


def _consumed(one: Cut, counted: AbstractSet[str]) -> dict[str, int]:
    start, size = one.placement
    found = {f"slice-{number}": 1 for number in range(start, start + size)}
    if one.profile.compute:
        found[COMPUTE] = one.profile.compute
    found |= {name: own for name, (own, _most) in one.profile.sums.items() if own}
    if one.profile.name in counted:
        found[_limit(one.profile.name)] = 1
    return found


def _limit(profile: str) -> str:
    return device_name(f"most-{profile}")


def pool(
    cards: Sequence[CardProfiles],
    there: Sequence[Entry] = (),
    withheld: AbstractSet[str] = frozenset(),
    *,
    held: AbstractSet[str] = frozenset(),
    driver: str = "",
    taints: Taints = Taints.OFF,
) -> PoolContents:
    """Every partition that may be made beside those that are ``there`` and that no claim has, as others' are.

    Those that claims have (``held``, by name) stay, tainted and last where their card is unwell. No other of such a
    card does.
    """
    devices: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    counters: list[dict[str, Any]] = []
    by_card = {one.card.device.uuid: one for one in cards}
    limits = {uuid: _counted(one) for uuid, one in by_card.items()}
    for uuid, one in by_card.items():
        taken = [(entry.profile, entry.placement) for entry in there if entry.card == uuid]
        counters.append({"name": device_name(uuid), "counters": _counters(one, taken, limits[uuid])})
    for cut in cuts(cards):
        uuid = cut.card.device.uuid
        one = by_card[uuid]
        taken = [(entry.profile, entry.placement) for entry in there if entry.card == uuid]
        free = cut.placement in free_places(cut.profile, one.profiles, taken)
        well = cut.card.device.health.offered and uuid not in withheld
        known = set(next(each for each in counters if each["name"] == device_name(uuid))["counters"])
        consumed = _consumed(cut, limits[uuid].keys())
        if not consumed.keys() <= known or not (cut.name in held or (free and well)):
            continue
        each = {
            **cut_entry(cut),
            **taints_of(cut.card.device, driver, taints),
            "consumesCounters": [
                {"counterSet": device_name(uuid), "counters": {k: {"value": str(v)} for k, v in consumed.items()}}
            ],
        }
        (devices if free and well else last).append(each)
    for one, counted in zip(cards, counters, strict=True):
        device = one.card.device
        free = all(entry.card != device.uuid for entry in there)
        well = device.health.offered and device.uuid not in withheld
        if one.whole and (one.card.name in held or (free and well)):
            every = [{"counterSet": counted["name"], "counters": counted["counters"]}]
            each = {**device_entry(one.card), **taints_of(device, driver, taints), "consumesCounters": every}
            (devices if free and well else last).append(each)
    return PoolContents(devices=[*devices, *last], counters=[one for one in counters if one["counters"]])


def _counters(
    one: CardProfiles, taken: Sequence[tuple[str, Placement]], limits: Mapping[str, int]
) -> dict[str, dict[str, str]]:
    """Less what others have of the sums. Their slices are given out by no device."""
    known = {profile.name: profile for profile in one.profiles}
    slices = max((p.start + p.size for profile in one.profiles for p in profile.placements), default=0)
    found = {f"slice-{number}": 1 for number in range(slices)}
    if one.compute:
        used = sum(known[name].compute if name in known else place.size for name, place in taken)
        found[COMPUTE] = max(1, one.compute - used)
    for sum_of, most in one.sums.items():
        used = sum(known[name].sums.get(sum_of, (0, 0))[0] for name, _place in taken if name in known)
        found[sum_of] = max(1, most - used)
    for name, limit in limits.items():
        found[_limit(name)] = max(1, limit - sum(other == name for other, _place in taken))
    return {name: {"value": str(value)} for name, value in found.items()}


def overlap(
    wanted: Sequence[PreparedShare], others: Mapping[str, Sequence[PreparedShare]], cards: Iterable[CardProfiles]
) -> str:
    """Which of the ``wanted`` partitions the card cannot have beside those of ``others``, by claim; empty where all."""
    profiles = {one.card.device.uuid: one.profiles for one in cards}
    known = [(key, held) for key, shares in others.items() for held in shares if not held.admin]
    for held in wanted:
        if not held.profile:
            continue
        beside = [(key, one) for key, one in known if one.grant.uuid == held.grant.uuid]
        own = profiles.get(held.grant.uuid, ())
        profile = next((one for one in own if one.name == held.profile), None)
        taken = [(one.profile, one.placement) for _key, one in beside if one.profile]
        whole = len(taken) < len(beside)
        if profile and (whole or held.placement not in free_places(profile, own, taken)):
            whose = sorted({key for key, _one in beside if key})
            who = f"ResourceClaim {whose[0]} still has" if whose else "this claim has too"
            return f"{held.device} has no room on its card beside what {who}"
        known.append(("", held))
    return ""


def card_profiles(
    family: Family, cards: Iterable[Offered], profiles: Mapping[str, Sequence[Profile]]
) -> Iterator[CardProfiles]:
    """The cards of a family that is cut, with what is known of each."""
    side = family.node.partitions
    for one in cards:
        own = tuple(profiles.get(one.device.uuid, ()))
        if side and own:
            allowed = frozenset(profile.name for profile in side.allowed(one.device, own))
            yield CardProfiles(card=one, profiles=own, allowed=allowed, whole=side.whole)


def left_beside(one: Offered, sized: Sized, there: Iterable[Entry]) -> Offered:
    """A card that is shared in partitions of any size, without what is taken by those that are ``there``."""
    taken = [sized.amounts(entry.profile) for entry in there if entry.card == one.device.uuid]
    cores = max(0, one.cores - sum(cores for cores, _memory in taken))
    memory = max(0, one.memory - sum(memory for _cores, memory in taken)) // one.unit * one.unit
    return replace(one, cores=cores, memory=memory, lessened=True) if taken else one
