"""A good choice soon: grow it one device at a time from every start, then exchange members while that helps."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from hami_plugin.policy.worth import Worth


def grown(worth: Worth, count: int) -> tuple[int, int]:
    """The best of what comes of each start, ranked, and in how many steps. ``count`` is at least 1, and not all."""
    growth = _Growth(worth, count)
    choices = [growth.choice(start) for start in range(worth.size)]
    return max(worth.ranked(choice) for choice in choices if choice), growth.steps


class _Growth:
    def __init__(self, worth: Worth, count: int) -> None:
        self._pairs = [[worth.factor * link for link in row] for row in worth.links]
        self._alone = worth.alone
        self._count = count
        self._below = -1 - max(worth.alone) - sum(map(max, self._pairs))  # no gain, whatever is taken, makes up for it
        self._known: set[int] = set()  # members of all that was met, as bits

    @property
    def steps(self) -> int:
        return len(self._known)

    def choice(self, start: int) -> list[int]:
        """Members of a choice; none where it comes to what another start has come to, for what follows is known."""
        pairs, known = self._pairs, self._known
        inside, members, best, gains = [], 0, start, list(self._alone)
        while True:
            inside.append(best)
            members |= 1 << best
            if members in known:
                return []
            known.add(members)
            gains = list(map(add, gains, pairs[best]))
            gains[best] += self._below  # a member is no candidate
            if len(inside) == self._count:
                break
            best = gains.index(max(gains))
        for p in inside:
            gains[p] -= self._below
        return self._exchanged(inside, members, gains)

    def _exchanged(self, inside: list[int], members: int, gains: list[int]) -> list[int]:
        """The best exchange of two at a time. ``gains``: what each adds to the others, or would."""
        while True:
            old, new = self._exchange(inside, gains)
            if old == new:
                return inside
            inside[inside.index(old)] = new
            members ^= 1 << old | 1 << new
            if members in self._known:
                return []
            self._known.add(members)
            gains = [g - a + b for g, a, b in zip(gains, self._pairs[old], self._pairs[new], strict=True)]

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
