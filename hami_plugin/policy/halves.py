"""The best choice from an uneven block: every combination of one half of its parts with all those of the other half.

Exact, because every one is looked at. Soon, because what all combinations of the right half are worth are fields of one
long integer: for a combination of the left half, one addition ranks them all, and one comparison keeps for each of them
the best that it was ever combined with.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from math import prod
from operator import itemgetter

from hami_plugin.policy.combinations import by_count, sums, worths
from hami_plugin.policy.fields import Fields


class Halves:
    """``tables``: what the best 0, 1, 2, ... devices of each of at least two parts are worth. A pair of devices of two
    parts adds ``pair`` times their ``links``. Nothing is negative, and no choice is worth more than ``most``.
    """

    def __init__(
        self, tables: Sequence[Sequence[int]], links: Sequence[Sequence[int]], *, pair: int, most: int
    ) -> None:
        most_of = [len(table) - 1 for table in tables]
        cut = _cut([len(table) for table in tables])
        right = by_count(most_of[cut:])
        ordered = itemgetter(*chain.from_iterable(right))
        self._starts = list(accumulate(map(len, right), initial=0))
        self._fields = Fields(self._starts[-1], most.bit_length())
        self._own = self._fields.packed(ordered(worths(tables[cut:], [row[cut:] for row in links[cut:]], pair)))
        self._rows = [pair * self._fields.packed(ordered(sums(row[cut:], most_of[cut:]))) for row in links[:cut]]
        self._left = right if most_of[:cut] == most_of[cut:] else by_count(most_of[:cut])
        self._worths = worths(tables[:cut], links, pair)
        self._low, self._high = most_of[: cut // 2], most_of[cut // 2 : cut]

    def best(self, count: int) -> int:
        """The worth of the best choice of ``count`` devices."""
        found = 0
        for ours, combinations in enumerate(self._left):
            if 0 <= count - ours < len(self._starts) - 1:
                found |= self._best(combinations, count - ours)
        return self._fields.highest(found)

    def _best(self, combinations: Sequence[int], theirs: int) -> int:
        """In the field of each combination of ``theirs`` devices: the most it is worth with one of the left half."""
        start, end = (at * self._fields.width for at in self._starts[theirs : theirs + 2])
        mask = (1 << end - start) - 1
        ones, guard, shift = self._fields.ones & mask, self._fields.guard, self._fields.width - 1
        guards, left = guard * ones, self._worths
        rows = [row >> start & mask for row in self._rows]
        low, high = sums(rows[: len(self._low)], self._low), sums(rows[len(self._low) :], self._high)
        split, top = len(low), 0  # a combination of the left half is one of its lower parts and one of its upper ones
        for combination in combinations:
            linked = low[combination % split] + high[combination // split]
            excess = (left[combination] | guard) * ones + linked - top
            ahead = excess & guards
            top += excess & ahead - (ahead >> shift)
        return top + (self._own >> start & mask) << start


def _cut(sizes: Sequence[int]) -> int:
    """Where to cut so that the half with more combinations has as few as possible."""
    return min(range(1, len(sizes)), key=lambda cut: max(prod(sizes[:cut]), prod(sizes[cut:])))
