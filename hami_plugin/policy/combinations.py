"""Every way to take devices of a few parts of a block, with what each is worth by itself.

A combination is a number whose digits, the first part's the lowest, are how many devices it takes of each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Unit:
    """A part of the block: the worth of its best choice of 0, 1, 2, ... devices, and the mask that names each."""

    worths: Sequence[int]
    masks: Sequence[int]
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = len(self.worths) - 1


class Combinations:
    """All combinations of some units; ``by_count`` has those of each number of devices, the best one first."""

    def __init__(self, units: Sequence[Unit], links: Sequence[Sequence[int]]) -> None:
        self.units = units
        self.worths, counts = [0], [0]
        for i, unit in enumerate(units):
            linked, before = sums(links[i][:i], units[:i]), self.worths
            for n, own in enumerate(unit.worths[1:], start=1):
                self.worths = self.worths + [worth + own + n * link for worth, link in zip(before, linked, strict=True)]
            counts = [count + n for n in range(unit.most + 1) for count in counts]
        self.by_count: dict[int, list[int]] = {}
        for combination in sorted(range(len(counts)), key=self.worths.__getitem__, reverse=True):
            self.by_count.setdefault(counts[combination], []).append(combination)

    def taken(self, combination: int) -> Iterator[int]:
        """How many devices of each unit it takes."""
        for unit in self.units:
            combination, number = divmod(combination, unit.most + 1)
            yield number

    def mask(self, combination: int) -> int:
        return sum(unit.masks[n] for unit, n in zip(self.units, self.taken(combination), strict=True))


def sums(row: Sequence[int], units: Sequence[Unit]) -> list[int]:
    """What a device with this row of links has to each combination of the units."""
    totals = [0]
    for link, unit in zip(row, units, strict=True):
        before = totals
        for n in range(1, unit.most + 1):
            linked = n * link
            totals = totals + [total + linked for total in before]
    return totals
