"""How long it takes to choose the best-linked devices, and how much memory, beside trying every choice.

Times are of this process's CPU, the median of some runs. Nothing is kept from one run to the next.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench.figures import Figure, median
from hami_plugin.model.links import Link, Links
from hami_plugin.policy.linked import choose
from hami_plugin.simulation.machines import load_machine

LEVELS = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
SEED = 16
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``count`` of ``scores``' devices. ``limit_ms`` None: for information."""

    name: str
    scores: Sequence[Sequence[int]]
    count: int
    limit_ms: float | None
    enumerated: bool = False


async def measure(*, repeats: int) -> list[Figure]:
    """Time and peak memory of each case, and of trying everything where that ends."""
    figures: list[Figure] = []
    for case in _cases():
        devices = [f"d{n:02}" for n in range(len(case.scores))]
        links = links_of(devices, case.scores)

        def chosen(devices: list[str] = devices, links: Links = links, count: int = case.count) -> bool:
            return choose(devices, count, links).proven

        note = "proven" if chosen() else "not proven"
        times = [_seconds(chosen) for _ in range(repeats)]
        figures.append(Figure(name=case.name, value=1000 * median(times), unit="ms", limit=case.limit_ms, note=note))
        figures.append(Figure(name="  peak of memory", value=_peak(chosen), unit="MiB", limit=1))
        if case.enumerated:
            figures += _enumerated(case)
    return figures


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


def arbitrary(devices: int) -> list[list[int]]:
    chance = random.Random(SEED)
    score = {pair: chance.randrange(1000) for pair in combinations(range(devices), 2)}
    return _scored(devices, lambda i, j: score[min(i, j), max(i, j)])


def _scored(devices: int, score: Callable[[int, int], int]) -> list[list[int]]:
    rows = range(devices)
    return [[0 if i == j else score(i, j) for j in rows] for i in rows]


def _cases() -> list[Case]:
    chance = random.Random(SEED)
    some = sorted(chance.sample(range(72), 24))
    rest = sorted(chance.sample(range(16), 14))
    grid, tray = profile("aws-trn1-32xlarge"), rack()
    return [
        Case(name="8 of 16 behind a switch", scores=profile("dgx-2"), count=8, limit_ms=1, enumerated=True),
        Case(name="8 of 16 in a grid", scores=grid, count=8, limit_ms=1),
        Case(name="7 of 14 that are left of it", scores=_part(grid, rest), count=7, limit_ms=1),
        Case(name="8 of 16, random", scores=arbitrary(16), count=8, limit_ms=5, enumerated=True),
        Case(name="12 of 24 that are left of a rack", scores=_part(tray, some), count=12, limit_ms=5),
        Case(name="8 of a rack of 72", scores=tray, count=8, limit_ms=10),
        Case(name="36 of a rack of 72", scores=tray, count=36, limit_ms=10),
        Case(name="16 of 64 partitions", scores=partitions(), count=16, limit_ms=10),
        Case(name="12 of 24, random", scores=arbitrary(24), count=12, limit_ms=None),
        Case(name="8 of 64, random", scores=arbitrary(64), count=8, limit_ms=None),
        Case(name="32 of 64, random", scores=arbitrary(64), count=32, limit_ms=None),
    ]


def _part(scores: Sequence[Sequence[int]], left: Sequence[int]) -> list[list[int]]:
    return [[scores[i][j] for j in left] for i in left]


def _enumerated(case: Case) -> list[Figure]:
    """All choices in memory, then the best of them, as HAMi's scheduler has it."""

    def tried() -> object:
        choices = list(combinations(range(len(case.scores)), case.count))
        return max(choices, key=lambda choice: sum(case.scores[i][j] for i, j in combinations(choice, 2)))

    return [
        Figure(name="  trying every choice", value=1000 * _seconds(tried), unit="ms"),
        Figure(name="  peak of memory of that", value=_peak(tried), unit="MiB"),
    ]


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _peak(work: Callable[[], object]) -> float:
    """MiB that are allocated at once, beyond what was before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()
