"""Of devices that would all serve: those that are linked best with each other, and leave the others linked best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from hami_plugin.model.links import Links
from hami_plugin.scheduler.engine.topology.exact import best_of_blocks, blocks
from hami_plugin.scheduler.engine.topology.search import improved
from hami_plugin.scheduler.engine.topology.worth import Worth, worth

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

    Exact on every machine that is built of boards, switches and sockets, whatever is in use: how well a part's devices
    are linked to the others depends only on how many of them are taken, so the best ones of each number do (``blocks``,
    ``structure``). Where no two are alike, every choice from up to 20 devices is looked at (``halves``). Beyond, it is
    never worse than growing from every device and exchanging (``growing``), and what that leaves of some 10 ms goes
    into looking at whatever could still be better (``bounded``): ``proven`` when that came to its end.
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

    ``order`` has all places: of equal choices that is taken which stands first in it, and in this order it is told.
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
    best, proven = improved(tree, free, count)
    return free.named(best), proven
