"""Time and memory of the extender's filter for one pod over many nodes, compared with keeping nothing.

Nodes and pods are read beforehand, as by a scheduler with watches. Each question is another pod's, and the previous pod
gets its choice in between, so that one node is computed anew each time. Times are this process's CPU time, compared
with ``json.loads`` of all nodes' registers; memory is what ``tracemalloc`` counts.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.figures import Figure, median, ratio
from bench.occupation import Cluster, asking, cluster
from bench.selection import held, peak
from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.devices import ORDER_KEY
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterCache, FilterResult, filter_nodes
from hami_plugin.scheduler.engine.node_info import patch, read_idle_node

SEED = 16
LIMIT = 0.6
"""Multiples of the parsing time."""
WORST = 15.0
"""The same of the slowest question: a collection of all of the garbage may fall into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pod of ``count`` cards over ``nodes`` of a packaged machine."""

    machine: str
    nodes: int
    count: int
    linked: bool
    limit: float

    def __str__(self) -> str:
        how = "best linked cards" if self.linked else "card" if self.count == 1 else "cards"
        return f"{self.count} {how}, {self.nodes:,} nodes of {self.machine}"

    def pod(self, number: int) -> PodView:
        return asking(f"pod-{number}", self.count, {ORDER_KEY: "topology-aware"} if self.linked else {})


ROWS = (
    Row(machine="dgx-h100", nodes=1000, count=1, linked=False, limit=LIMIT),
    Row(machine="dgx-h100", nodes=1000, count=4, linked=True, limit=LIMIT),
    Row(machine="dgx-1v", nodes=1000, count=4, linked=True, limit=LIMIT),
    Row(machine="dgx-2", nodes=100, count=8, linked=True, limit=LIMIT),
)


async def measure(*, repeats: int, rows: Sequence[Row] = ROWS) -> list[Figure]:
    """Median and worst time of each row, the same with nothing kept, and the cost of the start."""
    return [figure for row in rows for figure in _figures(row, repeats)]


def _figures(row: Row, repeats: int) -> Iterator[Figure]:
    known = cluster(row.machine, row.nodes, random.Random(SEED))
    started = time.process_time()
    snapshot = _scene(known)
    cold = time.process_time() - started
    names = list(snapshot.nodes)

    def asked(number: int, kept: FilterCache | None = None) -> FilterResult:
        outcome = filter_nodes(replace(snapshot, kept=kept or snapshot.kept), row.pod(number), names)
        assert isinstance(outcome, FilterResult)
        return outcome

    bare = [_seconds(lambda: asked(0, FilterCache()))[0] for _ in range(3)]
    first = asked(0)
    times, parsing = list[float](), list[float]()
    for number in range(repeats):
        _enter(snapshot, row.pod(number), first)
        seconds, first = _seconds(lambda: asked(number + 1))  # noqa: B023  # used at once
        times.append(seconds)
        parsing.append(_parsing(known))
    middle, note = median(times), f"fits {row.nodes - len(first.failed):,}; {len(snapshot.pods.entries):,} pods there"
    note = f"{1000 * middle:.1f} ms, parsing {1000 * median(parsing):.1f}; {note}"
    yield Figure(name=f"{row} / parsing", value=ratio(times, parsing), unit="x", limit=row.limit, note=note)
    yield Figure(name="  worst", value=max(times) / median(parsing), unit="x", limit=WORST)
    yield Figure(name="  with nothing kept", value=1000 * median(bare), unit="ms")
    yield Figure(name="  times as long as that", value=middle / median(bare), limit=0.05)
    yield Figure(name="  peak of memory", value=peak(lambda: asked(0)), unit="MiB", limit=1)
    yield Figure(name="  memory of what is kept", value=_kept(asked), unit="MiB")
    yield Figure(name="  reading all nodes for the first time", value=1000 * cold, unit="ms")


def _parsing(known: Cluster) -> float:
    """Seconds that ``json.loads`` takes for the registers of all nodes."""
    texts = [text for node in known.nodes for text in node.annotations.values()]
    started = time.process_time()
    for text in texts:
        json.loads(text)
    return time.process_time() - started


def _scene(known: Cluster) -> ClusterSnapshot:
    nodes = {node.name: read_idle_node(node, known.families).node_info for node in known.nodes}
    return ClusterSnapshot(families=known.families, nodes=nodes, pods=known.ledger)


def _enter(snapshot: ClusterSnapshot, pod: PodView, outcome: FilterResult) -> None:
    """Record the choice for the pod, as its annotations would."""
    if outcome.placed:
        written = patch(snapshot.families, pod, outcome.placed)
        snapshot.pods.see(replace(pod, annotations={**pod.annotations, **written}), snapshot.families)


def _kept(asked: Callable[[int, FilterCache], FilterResult]) -> float:
    kept: list[FilterCache] = []

    def fill() -> None:
        kept.append(FilterCache())
        asked(0, kept[0])

    return held(fill)


def _seconds(work: Callable[[], FilterResult]) -> tuple[float, FilterResult]:
    started = time.process_time()
    outcome = work()
    return time.process_time() - started, outcome
