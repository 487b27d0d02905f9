"""What a choice of devices is worth, as one number, so that every search only looks for the largest.

A choice A is better than another of its size when its links are better, then when those of the rest are, then when it
stands first. With a scale that no sum over the rest reaches, ``scale * sum(A) + sum(rest)`` ranks by the first two.
Because ``sum(rest) = total - sum(degrees of A) + sum(A)``, that is a sum over pairs and single members of A alone: the
tie-break costs nothing. Required devices are always in A, so their links count as something that the others have alone.
Of choices of one size, adding the same amount to every pair changes no comparison: the least score becomes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Positions 0 to ``size - 1``, earlier ones preferred; nothing is negative.

    ``links`` are scores less the least one; a pair that is chosen adds ``factor`` times its own. ``alone`` is what each
    position adds by itself.
    """

    links: Sequence[Sequence[int]]
    factor: int
    alone: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.alone)

    def of(self, choice: Sequence[int]) -> int:
        pairs = sum(self.links[a][b] for i, a in enumerate(choice) for b in choice[i + 1 :])
        return self.factor * pairs + sum(self.alone[p] for p in choice)

    def ranked(self, choice: Sequence[int]) -> int:
        """The worth and, below it, one bit a position, the first the highest: it ranks a choice and names it."""
        return (self.of(choice) << self.size) + sum(self.bit(p) for p in choice)

    @property
    def pair(self) -> int:
        """What a link of 1 between two that are chosen adds to ``ranked``."""
        return self.factor << self.size

    def bit(self, position: int) -> int:
        return 1 << (self.size - 1 - position)

    def named(self, ranked: int) -> tuple[int, ...]:
        """The positions of a choice that ``ranked`` stands for."""
        return tuple(p for p in range(self.size) if ranked & self.bit(p))


def worth(scores: Sequence[Sequence[int]], free: Sequence[int], needed: Sequence[int], *, rest: bool = True) -> Worth:
    """The worth of choosing some of the ``free`` besides all of the ``needed``. ``scores`` is symmetric.

    Without ``rest`` the links of what is left do not count.
    """
    least = min((score for i, row in enumerate(scores) for score in row[i + 1 :]), default=0)
    links = [[score - least for score in row] for row in scores]
    for i, row in enumerate(links):
        row[i] = 0
    degrees = [sum(row) for row in links]
    factor = sum(degrees) // 2 + 2
    most = max(degrees, default=0)
    return Worth(
        links=[[links[p][q] for q in free] for p in free],
        factor=factor,
        alone=[factor * sum(links[p][q] for q in needed) + (most - degrees[p]) * rest for p in free],
    )
