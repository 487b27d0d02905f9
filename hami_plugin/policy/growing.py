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
