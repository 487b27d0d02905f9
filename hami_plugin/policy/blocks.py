"""Machines are built of blocks: groups of devices that every device outside sees alike.

How well a choice within such a block is linked to the outside depends only on how many it takes of it, so a block needs
one best choice for each number, however many devices it has. In an even block all pairs of its parts have one and the
same score: a board, a switch, a rack. Only uneven blocks (rings, meshes, grids) leave anything to search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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
