"""Time and memory of choosing the best-linked devices, compared with trying every choice.

A row is a kind of question. Of many such questions the slowest is shown: the median of some runs, with nothing kept
from one to the next, each compared with trying every choice of 8 of 16 devices right beside it.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from bench.figures import Figure, cpu_beside, cpu_of, median, ratio
from hami_plugin.model.device import Link, Links
from hami_plugin.scheduler.engine.topology import choose
from hami_plugin.simulation.machines import load_machine, machine_names

LEVELS = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
SEED = 16
SUSPECTS = 3
"""How many of the slowest questions are repeated."""
SHORT, MEDIUM, LONG = 0.05, 0.15, 0.3
"""Limits, as parts of trying all 12,870 choices of 8 of 16."""
BUDGET = 0.35
"""LONG, and some for what the search, which counts its steps and reads no clock, cannot know of the machine."""
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``count`` of those of a machine's devices that are free."""

    about: str
    free: Sequence[str]
    count: int
    links: Links

    def answered(self) -> bool:
        return choose(self.free, self.count, self.links).proven

    def tried(self) -> object:
        """All choices in memory, then the best of them, as HAMi's scheduler has it."""
        score = {pair: self.links.score(*pair) for pair in combinations(self.free, 2)}
        choices = list(combinations(self.free, self.count))
        return max(choices, key=lambda choice: sum(score[pair] for pair in combinations(choice, 2)))

    def __str__(self) -> str:
        return f"{self.count} of {len(self.free)}, {self.about}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``proven``: all answers have to be."""

    name: str
    questions: Sequence[Question]
    limit: float
    proven: bool = True
    enumerated: bool = False


async def measure(*, repeats: int) -> list[Figure]:
    """Time and peak memory of the slowest question of each row, and of trying everything where that is feasible."""
    return [figure for row in _rows(random.Random(SEED), repeats) for figure in _figures(row, repeats)]


def _figures(row: Row, repeats: int) -> Iterator[Figure]:
    open_ones = [question for question in row.questions if not question.answered()]
    first = {n: min(cpu_of(question.answered) for _ in range(2)) for n, question in enumerate(row.questions)}
    suspects = [row.questions[n] for n in sorted(first, key=first.__getitem__)[-SUSPECTS:]]
    timed = [(cpu_beside(question.answered, _yardstick().tried, repeats), question) for question in suspects]
    value, seconds, slowest = max(((ratio(*pair), median(pair[0]), question) for pair, question in timed), key=_value)
    proven = f"{len(row.questions) - len(open_ones)} of {len(row.questions)} proven"
    note = f"{1000 * seconds:.2f} ms, {slowest}; {proven}"
    yield Figure(name=f"{row.name} / 8 of 16 tried", value=value, unit="x", limit=row.limit, note=note)
    most = max(peak(question.answered) for question in suspects)
    yield Figure(name="  peak of memory", value=most, unit="MiB", limit=1)
    if row.proven:
        yield Figure(name="  answers that are not proven", value=len(open_ones), limit=0)
    if row.enumerated:
        yield Figure(name="  trying every choice", value=1000 * cpu_of(slowest.tried), unit="ms")
        yield Figure(name="  peak of memory of that", value=peak(slowest.tried), unit="MiB")


def _value(found: tuple[float, float, Question]) -> float:
    return found[0]


@cache
def _yardstick() -> Question:
    return _question("random", arbitrary(16, random.Random(SEED)), range(16))(8)


def links_of(devices: Sequence[str], scores: Sequence[Sequence[int]]) -> Links:
    pairs = combinations(range(len(devices)), 2)
    return Links(pairs={(devices[i], devices[j]): Link(score=scores[i][j], label="") for i, j in pairs})


def profile(name: str) -> list[list[int]]:
    """A packaged machine's scores: its level, and 100 for each lane."""
    found = load_machine(name)
    rows = range(len(found.devices))
    return [
        [0 if i == j else LEVELS[found.levels[i][j]] + 100 * min(18, found.lanes[i][j]) for j in rows] for i in rows
    ]


def rack() -> list[list[int]]:
    """72 GPUs behind one switch, four a tray."""
    return _scored(72, lambda i, j: 1820 if i // 4 == j // 4 else 1810)


def partitions() -> list[list[int]]:
    """Eight cards of eight partitions, four cards a socket."""
    return _scored(64, lambda i, j: 460 if i // 8 == j // 8 else 120 if i // 32 == j // 32 else 110)


def arbitrary(devices: int, chance: random.Random) -> list[list[int]]:
    score = {pair: chance.randrange(1000) for pair in combinations(range(devices), 2)}
    return _scored(devices, lambda i, j: score[min(i, j), max(i, j)])


def _scored(devices: int, score: Callable[[int, int], int]) -> list[list[int]]:
    rows = range(devices)
    return [[0 if i == j else score(i, j) for j in rows] for i in rows]


def _rows(chance: random.Random, parts: int) -> Iterator[Row]:
    """``parts``: how many parts of each machine are asked about, besides the whole."""
    scores = [profile(name) for name in machine_names()]
    machines = dict(zip(machine_names(), scores, strict=True))
    for few, many in ((2, 8), (9, 12), (13, 16)):
        asked = [
            question
            for n, (name, rows) in enumerate(machines.items())
            if few <= len(rows) <= many and rows not in scores[:n]
            for question in _parts(name, rows, chance, parts if many > 8 else 2)
        ]
        name = f"any part of any profile of {few} to {many}"
        yield Row(name=name, questions=asked, limit=SHORT, enumerated=many == 16)
    tray, cards = rack(), partitions()
    for name, rows in (("rack", tray), ("partitions", cards)):
        some = [_question(name, rows, sorted(chance.sample(range(len(rows)), 24)))(12) for _ in range(parts)]
        yield Row(name=f"12 of any 24 of the {name}", questions=some, limit=MEDIUM)
    yield Row(name="8 of a rack of 72", questions=[_question("rack", tray, range(72))(8)], limit=LONG)
    yield Row(name="16 of 64 partitions", questions=[_question("partitions", cards, range(64))(16)], limit=LONG)
    asked = [*_parts("rack", tray, chance, 2), *_parts("partitions", cards, chance, 2)]
    yield Row(name="any part of these two", questions=asked, limit=LONG)
    for size, limit in ((16, MEDIUM), (20, LONG)):
        asked = [question for _ in range(3) for question in _parts("random", arbitrary(size, chance), chance, 0)]
        yield Row(name=f"any of {size}, random", questions=asked, limit=limit, enumerated=size == 16)
    for size in (24, 32, 48, 64, 72):
        question = _question("random", arbitrary(size, chance), range(size))
        asked = [question(size * n // 8) for n in range(1, 8)]
        yield Row(name=f"any of {size}, random", questions=asked, limit=BUDGET, proven=False)


def _parts(about: str, scores: Sequence[Sequence[int]], chance: random.Random, parts: int) -> list[Question]:
    """Each number of devices, of all of a machine and of some parts."""
    whole = range(len(scores))
    some = [sorted(chance.sample(whole, chance.randint(2, len(whole)))) for _ in range(parts)]
    return [_question(about, scores, free)(count) for free in (whole, *some) for count in range(1, len(free))]


def _question(about: str, scores: Sequence[Sequence[int]], free: Sequence[int]) -> Callable[[int], Question]:
    devices = [f"d{n:02}" for n in range(len(scores))]
    left, links = [devices[n] for n in free], links_of(devices, scores)
    return lambda count: Question(about=about, free=left, count=count, links=links)


def peak(work: Callable[[], object]) -> float:
    """The peak of newly allocated memory, in MiB."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def held(work: Callable[[], object]) -> float:
    """The memory that stays allocated, in MiB."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0] / MIB
    finally:
        tracemalloc.stop()
