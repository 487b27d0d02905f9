"""Sets of 2, 4 and 8 linked cards as devices of their own, the best first: the scheduler takes the first that is free.

A card and every set that it is in share a counter of one, so that it is given away once: by itself, or in a set. The
scheduler books counters before it looks at taints and constraints, and does not always give them back: hence a set with
an unwell card is left out and not tainted, and cards with counters have no linked groups to match.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from hami_plugin.dra.slices import MEMORY, Offered, PoolContents, Taints, device_name, devices, taints_of
from hami_plugin.model.device import Links
from hami_plugin.scheduler.engine.topology import best_linked

SIZES = (2, 4, 8)
MAX_SETS = 500
"""Of one family on a node. All sets of ten cards are 300."""
MAX_CARDS = 64
"""A device may consume counters of two sets, and a set has at most 32."""
COUNTERS_IN_SET = 32
SET = "set"
"""A set's type. A card's is its device type."""
_TRIES = 4
_DIGITS = 10
_NAME = re.compile(r"set-([0-9]{1,4}(?:-[0-9]{1,4}){1,7})-([0-9a-f]{10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedSet:
    """Cards that go to one claim together. ``score`` is the sum over their pairs, as our scheduler counts it.

    ``direct``: all are linked directly, each with each.
    """

    members: tuple[Offered, ...]
    score: int
    direct: bool

    @property
    def name(self) -> str:
        """By their numbers, and by their UUIDs: other cards are another set."""
        return _name(self.members)


def _name(members: Sequence[Offered]) -> str:
    digits = hashlib.sha256("\n".join(one.device.uuid for one in members).encode()).hexdigest()[:_DIGITS]
    return f"{SET}-{'-'.join(str(one.device.index) for one in members)}-{digits}"


def members_of(name: str, cards: Iterable[Offered]) -> tuple[Offered, ...]:
    """The cards of the set of that name, whether it is published now or not; none where they are not all here."""
    found = _NAME.fullmatch(name)
    if not found:
        return ()
    by_number = {one.device.index: one for one in cards if not one.device.place}
    members = [by_number[number] for number in map(int, found[1].split("-")) if number in by_number]
    return tuple(members) if members and _name(members) == name else ()


def can_make_sets(cards: Sequence[Offered], links: Links) -> bool:
    """Whether these cards make sets: they are linked, none is cut, and a device can consume the counters of all."""
    return bool(links.pairs) and 1 < len(cards) <= MAX_CARDS and not any(one.device.place for one in cards)


def linked_sets(cards: Sequence[Offered], links: Links) -> tuple[LinkedSet, ...]:
    """The sets worth having, by size, and the best of a size first, as our scheduler would choose.

    All of them where they are few. Of more, those that it would choose with none of the cards in use, and with many
    patterns of cards in use.
    """
    ordered = sorted(cards, key=lambda one: one.device.order)
    uuids = [one.device.uuid for one in ordered]
    place = {uuid: number for number, uuid in enumerate(uuids)}
    sizes = sorted((size for size in SIZES if size <= len(uuids)), key=lambda size: comb(len(uuids), size))
    found: dict[int, Sequence[tuple[str, ...]]] = {}
    left = MAX_SETS
    for number, size in enumerate(sizes):
        found[size] = _chosen(uuids, size, links, left // (len(sizes) - number))
        left -= len(found[size])
    total, degree = links.total(uuids), _degrees(uuids, links)

    def rank(members: tuple[str, ...]) -> tuple[int, int, list[int]]:
        score = links.total(members)
        return -score, -(total - sum(degree[one] for one in members) + score), [place[one] for one in members]

    return tuple(
        set_of([ordered[place[one]] for one in members], links)
        for size in sorted(found)
        for members in sorted(found[size], key=rank)
    )


def set_of(members: Sequence[Offered], links: Links) -> LinkedSet:
    """The set of these cards."""
    uuids = [one.device.uuid for one in members]
    direct = all((link := links.between(a, b)) and link.lanes for a, b in combinations(uuids, 2))
    return LinkedSet(members=tuple(members), score=links.total(uuids), direct=direct)


def _degrees(uuids: Sequence[str], links: Links) -> Mapping[str, int]:
    """What each card's links to all others are worth."""
    return {one: sum(links.score(one, other) for other in uuids if other != one) for one in uuids}


def _chosen(uuids: Sequence[str], size: int, links: Links, most: int) -> Sequence[tuple[str, ...]]:
    if comb(len(uuids), size) <= most:
        return list(combinations(uuids, size))
    found: dict[tuple[str, ...], None] = {}
    for number in range(_TRIES * most):
        free = list(uuids) if not number else _some(uuids, number)
        while len(free) >= size and len(found) < most:
            members = best_linked(free, size, links)
            found[members] = None
            free = [one for one in free if one not in members]
        if len(found) >= most:
            break
    return list(found)


def _some(uuids: Sequence[str], number: int) -> list[str]:
    """A pattern of cards that are free: the same for a number each time, so that slices stay the same."""
    bits = int.from_bytes(hashlib.sha256(str(number).encode()).digest(), "big")
    return [uuid for place, uuid in enumerate(uuids) if bits >> place & 1]


def least_linked_first(cards: Sequence[Offered], links: Links) -> list[Offered]:
    """First those whose links to the others are worth least: to give one of them away leaves the best sets.

    The unwell come last, and count for nothing.
    """
    well = [one for one in cards if one.device.health.offered]
    degree = _degrees([one.device.uuid for one in well], links)
    unwell = [one for one in cards if not one.device.health.offered]
    return [*sorted(well, key=lambda one: (degree[one.device.uuid], one.device.order)), *unwell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counters of a family's cards. ``number`` tells families of one pool apart."""

    cards: Sequence[Offered]
    number: int = 0

    def counter_sets(self) -> Iterator[dict[str, Any]]:
        """As slices have them."""
        for at in range(0, len(self.cards), COUNTERS_IN_SET):
            counters = {_counter(one): {"value": "1"} for one in self.cards[at : at + COUNTERS_IN_SET]}
            yield {"name": self._set(at), "counters": counters}

    def consumed(self, members: Iterable[Offered]) -> list[dict[str, Any]]:
        """What a device with these cards consumes."""
        place = {one.device.uuid: number for number, one in enumerate(self.cards)}
        found: dict[str, dict[str, Any]] = {}
        for one in members:
            found.setdefault(self._set(place[one.device.uuid]), {})[_counter(one)] = {"value": "1"}
        return [{"counterSet": name, "counters": counters} for name, counters in found.items()]

    def _set(self, place: int) -> str:
        return f"cards-{self.number}-{place // COUNTERS_IN_SET}"


def _counter(one: Offered) -> str:
    return device_name(one.device.uuid)


def set_entry(one: LinkedSet) -> dict[str, Any]:
    """The set in a slice, without its counters."""
    first = one.members[0].device
    attributes: dict[str, Any] = {
        "type": {"string": SET},
        "size": {"int": len(one.members)},
        "score": {"int": one.score},
        "direct": {"bool": one.direct},
        "members": {"string": ",".join(str(card.device.index) for card in one.members)},
    }
    if first.model.isascii() and {card.device.model for card in one.members} == {first.model} and first.model:
        attributes["productName"] = {"string": first.model[:64]}
    numa = {card.device.numa for card in one.members}
    if len(numa) == 1 and first.numa is not None and first.numa >= 0:
        attributes["resource.kubernetes.io/numaNode"] = {"int": first.numa}
    memory = sum(card.memory for card in one.members)
    capacity = {"capacity": {MEMORY: {"value": f"{memory}Mi"}}} if memory else {}
    return {"name": one.name, "attributes": attributes, **capacity}


def pool(
    counted: Counted,
    links: Links,
    sets: Sequence[LinkedSet],
    withheld: AbstractSet[str] = frozenset(),
    *,
    held: AbstractSet[str] = frozenset(),
    driver: str = "",
    taints: Taints = Taints.OFF,
) -> PoolContents:
    """The cards by themselves, then their sets.

    A set with a card that is unwell or ``withheld`` is left out, unless a claim has it (``held``, by name): its other
    cards would be given away again. It comes last then.
    """
    bad = withheld | {one.device.uuid for one in counted.cards if not one.device.health.offered}
    singles = {one.name: one for one in counted.cards}
    published = [
        {**each, "consumesCounters": counted.consumed([singles[each["name"]]])}
        for each in devices(least_linked_first(counted.cards, links), withheld, driver=driver, taints=taints)
    ]
    good = [one for one in sets if not any(card.device.uuid in bad for card in one.members)]
    kept = [
        set_of(members, links)
        for name in sorted(held - {one.name for one in good})
        if (members := members_of(name, counted.cards))
    ]
    for one in (*good, *kept):
        unwell = next((found for card in one.members if (found := taints_of(card.device, driver, taints))), {})
        published.append({**set_entry(one), **unwell, "consumesCounters": counted.consumed(one.members)})
    return PoolContents(devices=published, counters=list(counted.counter_sets()))
