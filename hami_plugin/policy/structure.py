"""Exact choice from a tree of blocks: what is best within a block does not depend on what is taken outside.

A choice takes some number of devices of each part of a block. Which ones they are changes nothing outside the part, so
they are the best ones of that number; and only the numbers remain to be found, by trying all that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hami_plugin.policy.blocks import Block, Even, Uneven, leader
from hami_plugin.policy.halves import Halves
from hami_plugin.policy.worth import Worth

EFFORT = 1 << 26
"""Combinations that may be tried, times the bits of what each is worth. Those of 20 devices: 4 ms, less than 1 MiB."""
EVERY_NUMBER = 4
"""Trying all combinations of a block, not only those of one number of devices, takes some four times as long."""


def best_of_blocks(tree: Block, worth: Worth, count: int) -> int | None:
    """The best ``count`` positions, as ``Worth.ranked`` has them; None when uneven blocks are too large to try."""
    most = worth.ranked(range(worth.size))
    inner = () if isinstance(tree, int) else tree.parts
    tried = _combinations(tree, count) + (EVERY_NUMBER - 1) * sum(_combinations(part, count) for part in inner)
    if tried * max(64, most.bit_length()) > EFFORT:
        return None
    return _Tables(worth=worth, limit=count, most=most).of(tree, range(count, count + 1))[count]


def _combinations(block: Block, limit: int) -> int:
    """How many its uneven blocks have, each by itself."""
    if isinstance(block, int):
        return 0
    own = prod(min(limit, _size(part)) + 1 for part in block.parts) if isinstance(block, Uneven) else 0
    return own + sum(_combinations(part, limit) for part in block.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """A table has the best choice, ranked, of 0, 1, 2, ... devices of a block, up to ``limit``."""

    worth: Worth
    limit: int
    most: int

    def of(self, block: Block, wanted: range | None = None) -> list[int]:
        """``wanted``: the only entries that will be read."""
        match block:
            case Even():
                return self._even([self.of(part) for part in block.parts], block.link)
            case Uneven():
                most = min(self.limit, _size(block))
                return self._uneven(block, wanted or range(most + 1), most)
            case position:
                return [0, (self.worth.alone[position] << self.worth.size) + self.worth.bit(position)]

    def _even(self, parts: Sequence[Sequence[int]], link: int) -> list[int]:
        """One part after the other: all pairs of it and what was taken before have the same link."""
        pair = self.worth.pair * link
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
        heads = [leader(part) for part in block.parts]
        links = [[self.worth.links[a][b] for b in heads] for a in heads]
        halves = Halves([self.of(part) for part in block.parts], links, pair=self.worth.pair, most=self.most)
        return [halves.best(n) if n in wanted else 0 for n in range(most + 1)]


def _size(block: Block) -> int:
    return 1 if isinstance(block, int) else sum(_size(part) for part in block.parts)
