"""A good choice soon: grow it one device at a time from every start, then exchange members while that helps."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.policy.fields import Fields
from hami_plugin.policy.worth import Worth


def grown(worth: Worth, count: int) -> tuple[int, int]:
    """The best of what comes of each start, ranked, and in how many steps. ``count`` is at least 1, and not all."""
    growth = _Growth(worth, count)
    choices = [growth.choice(start) for start in range(worth.size)]
    return max(worth.ranked(choice) for choice in choices if choice), growth.steps


class _Growth:
    """What each position would add to a choice stands in a field, and below it a number that names the position: of
    equals, the first one's is the highest.
    """

    def __init__(self, worth: Worth, count: int) -> None:
        self._count, self._last, self._shift = count, worth.size - 1, worth.size.bit_length()
        self._pairs = [[worth.factor * link for link in row] for row in worth.links]
        most = max(worth.alone) + max(map(sum, self._pairs))
        self._fields = Fields(worth.size, most.bit_length() + self._shift)
        self._rows = [self._fields.packed(row) << self._shift for row in self._pairs]
        self._names = (1 << self._shift) - 1
        self._alone = self._fields.packed([(alone << self._shift) + self._last - p for p, alone in enumerate(worth.alone)])
        whole = (1 << self._fields.width) - 1
        self._places = [whole << p * self._fields.width for p in range(worth.size)]
        self._known: set[int] = set()  # the places that are left, for all choices that were met

    @property
    def steps(self) -> int:
        return len(self._known)

    def choice(self, start: int) -> list[int]:
        """Members of a choice; none where it comes to what another start has come to, for what follows is known."""
        inside, best, gains, left = [], start, self._alone, sum(self._places)
        while True:
            inside.append(best)
            left ^= self._places[best]
            if left in self._known:
                return []
            self._known.add(left)
            gains += self._rows[best]
            if len(inside) == self._count:
                return self._exchanged(inside, left, gains)
            best = self._last - (self._fields.highest(gains & left) & self._names)

    def _exchanged(self, inside: list[int], left: int, gains: int) -> list[int]:
        """The best exchange of two at a time. ``gains``: what each adds to the others, or would."""
        while True:
            old, new = self._exchange(inside, [gain >> self._shift for gain in self._fields.unpacked(gains)])
            if old == new:
                return inside
            inside[inside.index(old)] = new
            left ^= self._places[old] | self._places[new]
            if left in self._known:
                return []
            self._known.add(left)
            gains += self._rows[new] - self._rows[old]

    def _exchange(self, inside: Sequence[int], gains: Sequence[int]) -> tuple[int, int]:
        """Which member to give for which other position; twice the same when none is worth it."""
        others = sorted(set(range(len(gains))).difference(inside), key=gains.__getitem__, reverse=True)
        better, exchange = 0, (-1, -1)
        for old in sorted(inside, key=gains.__getitem__):
            for new in others:
                most = gains[new] - gains[old]
                if most <= better:
                    break  # nor is any later one better: links are not negative
                if most - self._pairs[old][new] > better:
                    better, exchange = most - self._pairs[old][new], (old, new)
        return exchange
