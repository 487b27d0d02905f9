"""The best choice from an uneven block: each combination of one half of its parts, with the best of the other half.

Exact, because combinations of the left half are tried in the order of their own worth, and those that are left out
cannot reach the best one found even with the best links that so many devices could have across. For one combination on
the left, all those of one size on the right are ranked at once: their worths are 64-bit fields of one long integer.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from operator import add

from hami_plugin.policy.combinations import Combinations, Unit, sums

COMBINATIONS = 1 << 18
"""How many a block may have: those of 18 devices. Trying all of one count takes 5 ms or so, and less than 1 MiB."""


class Halves:
    """At least two units, and what a pair of devices of two units adds. Nothing is negative; no choice reaches 2^63."""

    def __init__(self, units: Sequence[Unit], links: Sequence[Sequence[int]]) -> None:
        order = _closest_first(links)
        units, links = [units[u] for u in order], [[links[u][v] for v in order] for u in order]
        cut = _cut([unit.most + 1 for unit in units])
        self._left = Combinations(units[:cut], [row[:cut] for row in links[:cut]])
        self._right = Combinations(units[cut:], [row[cut:] for row in links[cut:]])
        self._across = [row[cut:] for row in links[:cut]]
        self._tops_of_left = _tops(self._across, self._right.units)
        self._tops_of_right = _tops(list(zip(*self._across, strict=True)), self._left.units)
        self._rows = [sums(row, self._right.units) for row in self._across]
        self._packed: dict[int, list[int]] = {}

    def best(self, count: int) -> tuple[int, int]:
        """Worth and mask of the best choice of ``count`` devices."""
        best = (-1, 0)
        for reach, ours in sorted(self._reaches(count), reverse=True):
            theirs = count - ours
            for combination in self._left.by_count[ours]:
                worth = self._left.worths[combination]
                if worth + reach < best[0]:
                    break
                best = self._completed(combination, theirs, best)
        return best

    def _reaches(self, count: int) -> Iterator[tuple[int, int]]:
        """The most that the right half can add to so many devices of the left one, for each such number."""
        for ours in self._left.by_count:
            theirs = count - ours
            if theirs in self._right.by_count:
                of_left = _most(self._tops_of_left, self._left.units, ours, theirs)
                of_right = _most(self._tops_of_right, self._right.units, theirs, ours)
                best = self._right.by_count[theirs][0]
                yield self._right.worths[best] + min(of_left, of_right), ours

    def _completed(self, combination: int, theirs: int, best: tuple[int, int]) -> tuple[int, int]:
        """The better of ``best`` and this one of the left half with the best ``theirs`` devices of the right half."""
        own, *rows = self._packed.get(theirs) or self._pack(theirs)
        for taken, row in zip(self._left.taken(combination), rows, strict=True):
            if taken:
                own += taken * row
        members = self._right.by_count[theirs]
        worths = memoryview(own.to_bytes(8 * len(members), sys.byteorder)).cast("Q")
        top = max(worths)
        worth = self._left.worths[combination] + top
        if worth < best[0]:
            return best
        mask = max(self._right.mask(member) for member, own in zip(members, worths, strict=True) if own == top)
        return max(best, (worth, self._left.mask(combination) + mask))

    def _pack(self, theirs: int) -> list[int]:
        """What the right half's combinations of this size are worth; and what a device of each left unit adds."""
        members = self._right.by_count[theirs]
        self._packed[theirs] = [
            int.from_bytes(array("Q", map(row.__getitem__, members)).tobytes(), sys.byteorder)
            for row in (self._right.worths, *self._rows)
        ]
        return self._packed[theirs]


def _closest_first(links: Sequence[Sequence[int]]) -> list[int]:
    """Units in an order that keeps those together that are linked well: across the halves, little is left."""
    order, gains = [0], list(links[0])
    while len(order) < len(links):
        nearest = max((u for u in range(len(links)) if u not in order), key=gains.__getitem__)
        order.append(nearest)
        gains = list(map(add, gains, links[nearest]))
    return order


def _cut(sizes: Sequence[int]) -> int:
    """Where to cut so that the half with more combinations has as few as possible."""
    return min(range(1, len(sizes)), key=lambda cut: max(prod(sizes[:cut]), prod(sizes[cut:])))


def _tops(rows: Sequence[Sequence[int]], units: Sequence[Unit]) -> list[list[int]]:
    """For each row, the most that 0, 1, 2, ... devices of the units can be linked to it."""
    each = ([w for w, unit in zip(row, units, strict=True) for _ in range(unit.most)] for row in rows)
    return [list(accumulate(sorted(links, reverse=True), initial=0)) for links in each]


def _most(tops: Sequence[Sequence[int]], units: Sequence[Unit], ours: int, theirs: int) -> int:
    """The most that ``ours`` devices of the units can be linked to ``theirs`` others."""
    each = (top[theirs] for top, unit in zip(tops, units, strict=True) for _ in range(unit.most))
    return sum(sorted(each, reverse=True)[:ours])
