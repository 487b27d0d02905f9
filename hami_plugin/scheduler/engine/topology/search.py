"""Beyond what can be tried: a good choice, then everything that could be better, for as long as the budget lasts.

The budget is counted in looks at a device, so that equal questions have equal answers on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add

from hami_plugin.scheduler.engine.topology.exact import Block, Even, Fields
from hami_plugin.scheduler.engine.topology.worth import Worth


def grown(worth: Worth, count: int) -> tuple[int, int]:
    """The best of what comes of each start, ranked, and in how many steps. ``count`` is at least 1, and not all."""
    growth = _Growth(worth, count)
    choices = [growth.choice(start) for start in range(worth.size)]
    return max(worth.ranked(choice) for choice in choices if choice), growth.steps


class _Growth:
    """By links alone. What each position would add stands in a field, and below it a number that names the position: of
    equals, the first one's is the highest.
    """

    def __init__(self, worth: Worth, count: int) -> None:
        self._count, self._links, self._last = count, worth.links, worth.size - 1
        shift = worth.size.bit_length() + 1
        self._names, self._link = (1 << shift) - 1, 1 << shift
        # What is left of ``alone`` are links to the required devices: its tie-break is less than the factor.
        alone = [(each // worth.factor << shift) + self._last - p for p, each in enumerate(worth.alone)]
        self._fields = Fields(worth.size, (max(alone) + self._link * max(map(sum, worth.links))).bit_length())
        self._alone = self._fields.packed(alone)
        self._rows = [self._link * self._fields.packed(row) for row in worth.links]
        place = (1 << self._fields.width) - 1
        self._places = [place << p * self._fields.width for p in range(worth.size)]
        self._all = place * self._fields.ones
        self._known: set[int] = set()  # members of all that was met, as bits

    @property
    def steps(self) -> int:
        return len(self._known)

    def choice(self, start: int) -> list[int]:
        """Members of a choice; none where it comes to what another start has come to, for what follows is known."""
        inside, members, best, gains, left = [], 0, start, self._alone, self._all
        while True:
            inside.append(best)
            members |= 1 << best
            if members in self._known:
                return []
            self._known.add(members)
            gains += self._rows[best]
            if len(inside) == self._count:
                return self._exchanged(inside, members, gains)
            left ^= self._places[best]
            best = self._last - (self._fields.highest(gains & left) & self._names)

    def _exchanged(self, inside: list[int], members: int, gains: int) -> list[int]:
        """The best exchange of two at a time. ``gains``: what each adds to the others, or would."""
        while True:
            old, new = self._exchange(inside, self._fields.unpacked(gains))
            if old == new:
                return inside
            inside[inside.index(old)] = new
            members ^= 1 << old | 1 << new
            if members in self._known:
                return []
            self._known.add(members)
            gains += self._rows[new] - self._rows[old]

    def _exchange(self, inside: Sequence[int], gains: Sequence[int]) -> tuple[int, int]:
        """Which member to give for which other position; twice the same when none is worth it."""
        others = sorted(set(range(len(gains))).difference(inside), key=gains.__getitem__, reverse=True)
        better, exchange = self._last, (-1, -1)  # names alone differ by no more, links by more
        for old in sorted(inside, key=gains.__getitem__):
            if gains[others[0]] - gains[old] <= better:
                break  # nor is any later exchange better: links are not negative
            for new in others:
                most = gains[new] - gains[old]
                if most <= better:
                    break
                if most - self._link * self._links[old][new] > better:
                    better, exchange = most - self._link * self._links[old][new], (old, new)
        return exchange


LOOKS = 28_000
"""About 8 ms on one core of a present server."""


def improved(tree: Block, worth: Worth, count: int, looks: int = LOOKS) -> tuple[int, bool]:
    """The best choice found, ranked, and whether it is proven. ``count`` is at least 1, and less than there are."""
    first, steps = grown(worth, count)
    looks -= steps * (7 + worth.size // 12) + 2 * worth.size**2  # in looks of the same time
    if looks <= 0:
        return first, False
    search = _Search(worth=worth, before=dict(_twins(tree, worth)), best=first, looks=looks)
    search.visit(0, 0, count, 0, [worth.ranked([p]) for p in range(worth.size)])
    return search.best, search.looks > 0


def _twins(block: Block, worth: Worth) -> list[tuple[int, int]]:
    """Each position with the one before it that could stand for it: exchanging them changes nothing."""
    if isinstance(block, int):
        return []
    found = [pair for part in block.parts for pair in _twins(part, worth)]
    if isinstance(block, Even):
        single = sorted((worth.alone[part], part) for part in block.parts if isinstance(part, int))
        found += [(q, p) for (a, p), (b, q) in pairwise(single) if a == b]
    return found


@dataclass(kw_only=True, slots=True)
class _Search:
    """Branch and bound over positions: with the first one, then without it. Choices are ranked as in ``Worth``."""

    worth: Worth
    before: Mapping[int, int]
    best: int
    looks: int
    pairs: list[list[int]] = field(init=False)
    tops: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pairs = [[self.worth.factor * link << self.worth.size for link in row] for row in self.worth.links]

    def visit(self, p: int, members: int, missing: int, value: int, gains: Sequence[int]) -> None:
        """All choices of ``missing`` more from position ``p`` on. ``gains``: what each would add to the members."""
        if not missing:
            self.best = max(self.best, value)
            return
        left = self.worth.size - p
        self.looks -= left
        if self.looks <= 0 or left < missing or 2 * value + self._most(p, missing, gains) <= 2 * self.best:
            return
        twin = self.before.get(p)
        # Of twins the earlier is taken first: every other way gives an equal choice that stands later.
        if twin is None or members >> twin & 1:
            self.visit(p + 1, members | 1 << p, missing - 1, value + gains[p], list(map(add, gains, self.pairs[p])))
        self.visit(p + 1, members, missing, value, gains)

    def _most(self, p: int, missing: int, gains: Sequence[int]) -> int:
        """Twice the most that ``missing`` of the rest can add: each pair among them counts half for both its ends."""
        tops = self.tops.get((p, missing)) or self._tops(p, missing)
        each = [2 * gain + top for gain, top in zip(gains[p:], tops, strict=True)]
        return sum(sorted(each, reverse=True)[:missing])

    def _tops(self, p: int, missing: int) -> list[int]:
        """For each of the rest, the most that it can have with all but one of ``missing`` of the rest."""
        self.looks -= (self.worth.size - p) ** 2 // 3  # sorting is quick
        tops = [sum(sorted(row[p:], reverse=True)[: missing - 1]) for row in self.pairs[p:]]
        self.tops[p, missing] = tops
        return tops
