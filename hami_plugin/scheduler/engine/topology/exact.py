"""Exact choice from a tree of blocks: what is best within a block does not depend on what is taken outside.

A choice takes some number of devices of each part of a block. Which ones they are changes nothing outside the part, so
they are the best ones of that number; and only the numbers remain to be found, by trying all that fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod
from operator import itemgetter

from hami_plugin.scheduler.engine.topology.worth import Worth


def by_count(most: Sequence[int]) -> list[list[int]]:
    """The combinations of 0, 1, 2, ... devices."""
    counts = [0]
    for each in most:
        counts = [count + n for n in range(each + 1) for count in counts]
    found: list[list[int]] = [[] for _ in range(sum(most) + 1)]
    for combination, count in enumerate(counts):
        found[count].append(combination)
    return found


def sums(links: Sequence[int], most: Sequence[int]) -> list[int]:
    """For each combination, the sum of the links, one a part, of its devices."""
    totals = [0]
    for link, each in zip(links, most, strict=True):
        before = totals
        for n in range(1, each + 1):
            more = n * link
            totals = totals + [total + more for total in before]
    return totals


def worths(tables: Sequence[Sequence[int]], links: Sequence[Sequence[int]], pair: int) -> list[int]:
    """What each is worth by itself, from what the best 0, 1, 2, ... devices of each part are, and ``pair`` a link."""
    found = [0]
    for i, table in enumerate(tables):
        linked, before = sums(links[i][:i], [len(table) - 1 for table in tables[:i]]), found
        for n, own in enumerate(table[1:], start=1):
            each = n * pair
            found = found + [own + worth + each * link for worth, link in zip(before, linked, strict=True)]
    return found


_WORDS = {32: "I", 64: "Q"}
"""Widths that ``struct`` knows."""


class Fields:
    """``count`` (at least 1) fields for numbers of at most ``bits`` bits. The first number stands lowest."""

    def __init__(self, count: int, bits: int) -> None:
        self.count = count
        self.width = next((width for width in _WORDS if bits < width), (bits + 8) // 8 * 8)
        self.ones = ((1 << count * self.width) - 1) // ((1 << self.width) - 1)
        self.guard = 1 << self.width - 1
        self._rounds: list[tuple[int, int, int]] = []
        while count > 1:
            count = (count + 1) // 2
            half = (1 << count * self.width) - 1
            self._rounds.append((count * self.width, half, self.guard * (self.ones & half)))

    def packed(self, numbers: Sequence[int]) -> int:
        if word := _WORDS.get(self.width):
            return int.from_bytes(struct.pack(f"<{len(numbers)}{word}", *numbers), "little")
        return int.from_bytes(b"".join(number.to_bytes(self.width // 8, "little") for number in numbers), "little")

    def unpacked(self, fields: int) -> Sequence[int]:
        size = self.width // 8
        data = fields.to_bytes(self.count * size, "little")
        if word := _WORDS.get(self.width):
            return struct.unpack(f"<{self.count}{word}", data)
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]

    def highest(self, fields: int) -> int:
        """The largest number of all: one half against the other, until one is left."""
        shift = self.width - 1
        for cut, half, guards in self._rounds:
            other = fields >> cut
            excess = (fields & half | guards) - other
            ahead = excess & guards
            fields = other + (excess & ahead - (ahead >> shift))
        return fields


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """Devices of different parts all have the score ``link``."""

    link: int
    parts: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Any two parts have one score between their devices, but not all the same one."""

    parts: tuple[Block, ...]


Block = int | Even | Uneven
"""A single device is its position."""


def leader(block: Block) -> int:
    """One of its devices: outside, it stands for all of them."""
    while not isinstance(block, int):
        block = block.parts[0]
    return block


def blocks(links: Sequence[Sequence[int]]) -> Block:
    """All positions (at least one) of a symmetric matrix as a tree of blocks."""
    near: list[dict[int, int]] = []
    bits = [1 << p for p in range(len(links))]
    for own, row in zip(bits, links, strict=True):
        peers: dict[int, int] = {}
        for bit, link in zip(bits, row, strict=True):
            if bit != own:
                peers[link] = peers.get(link, 0) | bit
        near.append(peers)
    return _Tree(near=near).block((1 << len(links)) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Sets of positions are bit masks. ``near[p][link]`` are those that have this link to p."""

    near: Sequence[dict[int, int]]

    def block(self, members: int) -> Block:
        first = next(_positions(members))
        if members == 1 << first:
            return first
        for link, peers in self.near[first].items():
            # At most one link passes: the pairs between parts have it, and join all parts for any other link.
            if peers & members and self._connected(first, members, link) != members:
                parts = self._parts(members, link)
                return Even(link=link, parts=tuple(self.block(part) for part in parts))
        return Uneven(parts=(first, *(self.block(part) for part in self._alike(first, members))))

    def _parts(self, members: int, link: int) -> Iterator[int]:
        while members:
            part = self._connected(next(_positions(members)), members, link)
            yield part
            members &= ~part

    def _connected(self, start: int, members: int, link: int) -> int:
        """The members that ``start`` reaches over pairs that have another link."""
        reached = pending = 1 << start
        while pending and reached != members:
            p = pending.bit_length() - 1
            new = members & ~self.near[p].get(link, 0) & ~reached
            reached |= new
            pending = pending & ~(1 << p) | new
        return reached

    def _alike(self, first: int, members: int) -> list[int]:
        """The largest blocks among the members besides ``first``: whatever anyone sees differently is split."""
        alone: list[int] = []
        groups = [peers & members for peers in self.near[first].values() if peers & members]
        pending = members & ~(1 << first)
        while pending and groups:
            p = pending.bit_length() - 1
            pending &= ~(1 << p)
            near, refined = self.near[p].values(), groups
            groups = []
            for group in refined:
                pieces = [group] if group >> p & 1 else [group & peers for peers in near if group & peers]
                if len(pieces) > 1:
                    pending |= group  # each now sees the other pieces from outside
                for piece in pieces:
                    (groups if piece & piece - 1 else alone).append(piece)
        return sorted(alone + groups, key=lambda group: group & -group)


def _positions(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


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
