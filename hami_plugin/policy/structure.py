"""Exact choice from a tree of blocks: what is best within a block does not depend on what is taken outside.

A choice takes some number of devices of each part of a block. Which ones they are changes nothing outside the part, so
they are the best ones of that number; and only the numbers remain to be found, by trying all that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hami_plugin.policy.blocks import Block, Even, Uneven, leader
from hami_plugin.policy.combinations import Unit
from hami_plugin.policy.halves import COMBINATIONS, Halves
from hami_plugin.policy.worth import Worth


def best_of_blocks(tree: Block, worth: Worth, count: int) -> int | None:
    """The best ``count`` positions, as ``Worth.ranked`` has them; None when an uneven block is too large to try."""
    tables = _Tables(worth=worth, limit=count)
    return tables.of(tree, range(count, count + 1))[count] if tables.reach(tree) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """A table has the best choice, ranked, of 0, 1, 2, ... devices of a block, up to ``limit``."""

    worth: Worth
    limit: int

    def reach(self, block: Block) -> bool:
        """Whether every uneven block is small enough, and no worth outgrows what ``Halves`` computes with."""
        if isinstance(block, int):
            return True
        few = isinstance(block, Even) or (
            prod(min(self.limit, _size(part)) + 1 for part in block.parts) <= COMBINATIONS
            and self.worth.of(range(self.worth.size)) < 1 << 63
        )
        return few and all(self.reach(part) for part in block.parts)

    def of(self, block: Block, wanted: range | None = None) -> list[int]:
        """``wanted``: the only entries that will be read."""
        match block:
            case Even():
                return self._even([self.of(part) for part in block.parts], block.link)
            case Uneven():
                most = min(self.limit, _size(block))
                return self._uneven(block, wanted or range(most + 1), most)
            case position:
                return [0, self.worth.ranked([position])]

    def _even(self, parts: Sequence[Sequence[int]], link: int) -> list[int]:
        """One part after the other: all pairs of it and what was taken before have the same link."""
        pair = self.worth.factor * link << self.worth.size
        table = [0]
        for part in parts:
            before, most = table, min(self.limit, len(table) + len(part) - 2)
            table = [
                max(
                    before[n - m] + part[m] + (n - m) * m * pair
                    for m in range(max(0, n - len(before) + 1), min(n, len(part) - 1) + 1)
                )
                for n in range(most + 1)
            ]
        return table

    def _uneven(self, block: Uneven, wanted: range, most: int) -> list[int]:
        heads, size = [leader(part) for part in block.parts], self.worth.size
        tables = [self.of(part) for part in block.parts]
        names = (1 << size) - 1
        halves = Halves(
            [Unit(worths=[best >> size for best in t], masks=[best & names for best in t]) for t in tables],
            [[self.worth.factor * self.worth.links[a][b] for b in heads] for a in heads],
        )
        found = {n: halves.best(n) for n in wanted}
        return [(found[n][0] << size) + found[n][1] if n in found else 0 for n in range(most + 1)]


def _size(block: Block) -> int:
    return 1 if isinstance(block, int) else sum(_size(part) for part in block.parts)
