"""Of devices that would all serve: those that are linked best with each other, and leave the others linked best.

The question is ``choose``. It is answered in four steps:

1. ``worth``: what a choice is worth becomes one number, so that every search only looks for the largest.
2. ``blocks``: the machine is read as a tree of blocks, such as boards and sockets, of which the outside sees every
   device alike. What is best within a block does not depend on what is taken outside.
3. ``best_of_blocks``: for each block the best choice of 0, 1, 2, ... devices, from those of its parts. That is exact.
4. ``grown``: where no two of many devices are alike, a good choice that is not proven the best.

A choice A is better than another of its size when its links are better, then when those of the rest are, then when it
stands first. With a scale that no sum over the rest reaches, ``scale * sum(A) + sum(rest)`` ranks by the first two.
Because ``sum(rest) = total - sum(degrees of A) + sum(A)``, that is a sum over pairs and single members of A alone: the
tie-break costs nothing. Required devices are always in A, so their links count as something that the others have alone.
Of choices of one size, adding the same amount to every pair changes no comparison: the least score becomes 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations
from math import comb, prod
from operator import itemgetter

from hami_plugin.model.device import Links

MAX_KEPT = 1 << 18
"""Numbers in the questions that are kept: some 2 MiB, 9,000 questions about eight devices."""

FEW = 500
"""So many choices are tried one by one, which takes about a millisecond, to know all that are equally good."""

_Question = tuple[int, int, tuple[int, ...], tuple[int, ...], bool]
"""Of how many devices how many are wanted, at which positions required ones stand, the scores of all pairs, and whether
the rest counts.
"""

_Answer = tuple[Sequence[int], int, bool]
"""Positions, the sum of their scores, and whether it is proven the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``score`` is the sum of their pair scores. ``proven``: no choice is better, and no equal one comes first."""

    devices: tuple[str, ...]
    score: int
    proven: bool


class ChoiceCache:
    """Questions by scores alone, and their answers: alike nodes ask alike. Full, it forgets everything."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most, self._size = most, 0
        self._answers: dict[_Question, Sequence[int]] = {}

    def answer(self, question: _Question, answered: Callable[[_Question], Sequence[int]]) -> Sequence[int]:
        """What was ``answered`` before, or is now."""
        known = self._answers.get(question)
        if known is None:
            known = answered(question)
            size = len(question[3]) + len(known) + 1
            if self._size + size > self._most:
                self._answers.clear()
                self._size = 0
            self._answers[question] = known
            self._size += size
        return known


def choose(devices: Sequence[str], count: int, links: Links, *, required: Sequence[str] = ()) -> Choice:
    """The ``count`` of these distinct devices, ``required`` among them, with the highest sum of pair scores.

    Of equal ones: those that leave the best-linked rest, then those that stand first in ``devices``. One device has no
    pairs, so it is the one whose links to the others are worth least. The answer keeps the order of ``devices``.
    ValueError when there is no such choice.

    Exact on every machine that is built of boards, switches and sockets, whatever is in use, and wherever there are at
    most 20 devices. Beyond, where no two are alike, it is never worse than growing from every device and exchanging,
    and not ``proven``.
    """
    needed = tuple(i for i, uuid in enumerate(devices) if uuid in required) if required else ()
    if len(needed) != len(set(required)) or not len(needed) <= count <= len(devices):
        raise ValueError(f"cannot choose {count} of {len(devices)} devices, with {len(required)} required")
    taken, score, proven = _answer((len(devices), count, needed, links.scores(devices), True))
    return Choice(devices=tuple([devices[i] for i in taken]), score=score, proven=proven)


def best_linked(devices: Sequence[str], count: int, links: Links, *, required: Sequence[str] = ()) -> tuple[str, ...]:
    """The devices of ``choose``."""
    return choose(devices, count, links, required=required).devices


def best_places(
    order: Sequence[int], count: int, pairs: tuple[int, ...], *, rest: bool, choices: ChoiceCache | None = None
) -> Sequence[int]:
    """The places of what ``choose`` takes, by ``Links.scores`` alone: 0 < ``count`` <= how many there are.

    ``order`` has all places: of equal choices that is taken which stands first in it, and the answer is in this order.
    Without ``rest`` choices are equal whatever they leave. With ``solved``, what was answered before is not worked out
    again: questions are alike whose devices differ only in their order, where all equal choices are few.
    """
    size = len(order)

    def answer(question: _Question, answered: Callable[[_Question], Sequence[int]]) -> Sequence[int]:
        return choices.answer(question, answered) if choices else answered(question)

    if comb(size, count) <= FEW:
        equal = answer((size, count, (), pairs, rest), _equals)
        taken = _first(equal, order)
        return [place for place in order if taken >> place & 1]
    square = _square(pairs, size)
    walked = tuple([square[a][b] for i, a in enumerate(order, 1) for b in order[i:]])
    return [order[i] for i in answer((size, count, (), walked, rest), lambda question: _answer(question)[0])]


def _equals(question: _Question) -> Sequence[int]:
    """Every best choice, as bits."""
    size, count, _, pairs, rest = question
    free = worth(_square(pairs, size), range(size), (), rest=rest)
    worths = [(free.of(choice), choice) for choice in combinations(range(size), count)]
    most = max(worths)[0]
    return [sum([1 << place for place in choice]) for value, choice in worths if value == most]


def _first(choices: Sequence[int], order: Sequence[int]) -> int:
    """Of choices of one size that which stands first in the order: it has the first place that any has, and so on."""
    for place in order:
        if len(choices) == 1:
            break
        choices = [choice for choice in choices if choice >> place & 1] or choices
    return choices[0]


def _answer(question: _Question) -> _Answer:
    size, count, needed, pairs, rest = question
    scores = _square(pairs, size)
    free = [i for i in range(size) if i not in needed]
    chosen, proven = _best(worth(scores, free, needed, rest=rest), count - len(needed))
    taken = sorted([*needed, *(free[p] for p in chosen)])
    return taken, sum(scores[a][b] for i, a in enumerate(taken) for b in taken[i + 1 :]), proven


def _square(pairs: Sequence[int], size: int) -> list[list[int]]:
    scores = [[0] * size for _ in range(size)]
    for (i, j), score in zip(combinations(range(size), 2), pairs, strict=True):
        scores[i][j] = scores[j][i] = score
    return scores


def _best(free: Worth, count: int) -> tuple[Sequence[int], bool]:
    """Positions, and whether they are proven the best."""
    if count in (0, free.size):
        return range(count), True
    if count == 1:
        return [max(range(free.size), key=free.alone.__getitem__)], True
    tree = blocks(free.links)
    best = best_of_blocks(tree, free, count)
    if best is not None:
        return free.named(best), True
    return free.named(grown(free, count)), False


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


_CODES = {32: "I", 64: "Q"}
"""Widths that ``struct`` knows."""


class Fields:
    """``count`` (at least 1) fields for numbers of at most ``bits`` bits. The first number stands lowest."""

    def __init__(self, count: int, bits: int) -> None:
        self.count = count
        self.width = next((width for width in _CODES if bits < width), (bits + 8) // 8 * 8)
        self.ones = ((1 << count * self.width) - 1) // ((1 << self.width) - 1)
        self.guard = 1 << self.width - 1
        self._rounds: list[tuple[int, int, int]] = []
        while count > 1:
            count = (count + 1) // 2
            half = (1 << count * self.width) - 1
            self._rounds.append((count * self.width, half, self.guard * (self.ones & half)))

    def packed(self, numbers: Sequence[int]) -> int:
        if code := _CODES.get(self.width):
            return int.from_bytes(struct.pack(f"<{len(numbers)}{code}", *numbers), "little")
        return int.from_bytes(b"".join(number.to_bytes(self.width // 8, "little") for number in numbers), "little")

    def unpacked(self, fields: int) -> Sequence[int]:
        size = self.width // 8
        data = fields.to_bytes(self.count * size, "little")
        if code := _CODES.get(self.width):
            return struct.unpack(f"<{self.count}{code}", data)
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
        for ours, those in enumerate(self._left):
            if 0 <= count - ours < len(self._starts) - 1:
                found |= self._best(those, count - ours)
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


def grown(worth: Worth, count: int) -> int:
    """The best of what comes of each start, ranked. ``count`` is at least 1, and not all."""
    growth = _Growth(worth, count)
    choices = [growth.choice(start) for start in range(worth.size)]
    return max(worth.ranked(choice) for choice in choices if choice)


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
