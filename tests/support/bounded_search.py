"""Branch and bound over every choice of devices: slow, and written in another way than the scheduler's own search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add

from hami_plugin.scheduler.engine.topology import Block, Even, Worth, grown


def improved(tree: Block, worth: Worth, count: int, looks: int) -> tuple[int, bool]:
    """The best choice found in so many looks at a device, ranked, and whether it is proven. ``count`` is at least 1,
    and less than there are.
    """
    search = _Search(worth=worth, before=dict(_twins(tree, worth)), best=grown(worth, count), looks=looks)
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
