"""Latency of Allocate against a bare echo: one pod at a time, and a thousand containers in a row."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.figures import Figure, Spread, median
from bench.kubelet import Calls, Shares, echoing
from bench.processes import memory
from bench.testbed import Node, Testbed, open_testbed
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.model.placement import Grant

P50_LIMIT, P99_LIMIT = 4.0, 8.0
WRITES_LIMIT = 2.0
CLIFF_LIMIT = 0.5
NEIGHBOURS = 40
"""Pods that hold shares of the node all the time."""
WARMUP = 60
GAP_S = 0.005
"""Quiet time before each call that is timed."""
MEMORY_MIB = 400
CORES = 0

PODS, CONTAINERS = 100, 10
"""A thousand containers, in about as many pods as a kubelet takes (110)."""


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds."""

    allocate: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)
    prefer: list[float] = field(default_factory=list)


async def spaced(*, rounds: int, slack: float = 1.0) -> list[Figure]:
    """One pod with one container after the other, each known to the daemon before its Allocate is timed.

    The kubelet's own order of calls makes that sure: GetPreferredAllocation comes first, and the daemon answers it
    when its watch has the pod. Before each timed call is a pause; echo and Allocate take turns. With few rounds the
    limits need some ``slack``.
    """
    async with open_testbed(Node()) as testbed:
        await testbed.start_daemon()
        await testbed.published()
        with ExitStack() as stack:
            arrivals = _Arrivals(testbed, Calls(testbed.socket, stack))
            sample = await arrivals.serve_pod(Times())
            async with echoing(testbed.directory, sample, stack) as echo:
                await _take_turns(arrivals, echo, WARMUP)
                await testbed.cluster.recorded()
                since = time.monotonic()
                times = await _take_turns(arrivals, echo, rounds)
                await testbed.cluster.recorded()
        calls = await testbed.cluster.calls(since)
    counts = (
        f"{calls.writes} writes and {calls.reads} reads for {rounds} Allocates; watches and their lists not counted"
    )
    return [
        *_against_echo("Allocate, spaced", times, slack),
        Figure(name="API writes per Allocate", value=calls.writes / rounds, limit=WRITES_LIMIT, note=counts),
        Figure(name="API reads per Allocate", value=calls.reads / rounds, limit=0.0),
        Figure(name="API calls that were refused", value=float(calls.refused), limit=0.0),
        Figure(name="GetPreferredAllocation", value=Spread.of(times.prefer).p50, unit="ms", note=_preferring(times)),
    ]


async def burst(*, repeats: int) -> list[Figure]:
    """A thousand Allocates back to back for pods that are bound already, while the daemon records them behind.

    A second thousand takes turns with the echo, call by call, so that both are timed under the same load.
    """
    times, alone, ratios = Times(), Times(), []
    async with open_testbed(Node(split=PODS * CONTAINERS // 5)) as testbed:
        await testbed.start_daemon()
        await testbed.published()
        before = memory(testbed.pid).resident
        with ExitStack() as stack:
            crowd = _Crowd(testbed, Calls(testbed.socket, stack))
            sample = await crowd.run(Times(), pods=2)
            async with echoing(testbed.directory, sample, stack) as echo:
                await crowd.run(Times(), pods=5, echo=echo)
                for _ in range(repeats):
                    first = len(alone.allocate)
                    await crowd.run(alone, pods=PODS)
                    ratios.append(_last_tenth_to_first(alone.allocate[first:]))
                    await crowd.run(times, pods=PODS, echo=echo)
        after = memory(testbed.pid).resident
    rate, shown = len(alone.allocate) / sum(alone.allocate), ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return [
        Figure(name="Allocates a second, 1,000 in a row", value=rate, note=str(Spread.of(alone.allocate))),
        Figure(
            name="Rate of the last tenth / the first", value=median(ratios), limit=CLIFF_LIMIT, floor=True, note=shown
        ),
        *_against_echo("Allocate, 1,000 waiting", times),
        Figure(name=f"Memory after {2 * repeats},000 Allocates", value=after, unit="MiB", note=f"{before:.1f} before"),
    ]


class _Arrivals:
    """Pods that come one at a time and stay for a while."""

    def __init__(self, testbed: Testbed, daemon: Calls) -> None:
        self._testbed = testbed
        self._daemon = daemon
        self._shares = Shares(testbed.uuids, testbed.node)
        self._alive: deque[tuple[str, list[str]]] = deque()
        self._count = 0

    async def serve_pod(self, times: Times) -> pb.AllocateResponse:
        """A pod arrives, gets its device, and runs; the oldest has made room for it."""
        cluster = self._testbed.cluster
        if len(self._alive) >= NEIGHBOURS:
            gone, ids = self._alive.popleft()
            await cluster.delete_pod(gone)
            self._shares.give_back(ids)
        name, uuid = f"pod-{self._count}", self._testbed.uuids[self._count % len(self._testbed.uuids)]
        self._count += 1
        await cluster.create_pod(name, [[_grant(self._testbed, uuid)]], lock=True)
        ids, seconds = self._daemon.prefer(self._shares.free, 1)
        times.prefer.append(seconds)
        self._shares.claim(ids)
        await asyncio.sleep(GAP_S)
        answer, seconds = self._daemon.allocate(ids)
        times.allocate.append(seconds)
        self._alive.append((name, ids))
        await cluster.set_running(name)
        return answer

    async def ask_echo(self, echo: Calls, times: Times) -> None:
        await asyncio.sleep(GAP_S)
        times.echo.append(echo.echo(self._alive[-1][1]))


class _Crowd:
    """Many pods of several containers that are all bound before the first is served."""

    def __init__(self, testbed: Testbed, daemon: Calls) -> None:
        self._testbed = testbed
        self._daemon = daemon
        self._run = 0

    async def run(self, times: Times, *, pods: int, echo: Calls | None = None) -> pb.AllocateResponse:
        """Bind ``pods``, serve all their containers in order, and clear them away. Answers the last response.

        With ``echo`` each Allocate is followed by a call to it.
        """
        self._run += 1
        cluster, shares = self._testbed.cluster, Shares(self._testbed.uuids, self._testbed.node)
        names = [f"pod-{self._run}-{number}" for number in range(pods)]
        chosen = [self._testbed.uuids[number % len(self._testbed.uuids)] for number in range(CONTAINERS)]
        for name in names:
            await cluster.create_pod(name, [[_grant(self._testbed, uuid)] for uuid in chosen], lock=False)
        await self._known(shares)
        for uuid in chosen * pods:
            ids = [shares.take(uuid)]
            answer, seconds = self._daemon.allocate(ids)
            times.allocate.append(seconds)
            if echo:
                times.echo.append(echo.echo(ids))
        await cluster.recorded()
        for name in names:
            await cluster.delete_pod(name)
        await self._known(shares)
        return answer

    async def _known(self, shares: Shares) -> None:
        """Wait until the daemon's watch is here. A pod with a number of devices of its own is the mark in its order."""
        cluster, pair = self._testbed.cluster, self._testbed.uuids[:2]
        await cluster.create_pod("mark", [[_grant(self._testbed, uuid) for uuid in pair]], lock=False)
        self._daemon.prefer(shares.free, len(pair))
        await cluster.delete_pod("mark")


async def _take_turns(arrivals: _Arrivals, echo: Calls, rounds: int) -> Times:
    times = Times()
    for number in range(rounds):
        if number % 2:
            await arrivals.ask_echo(echo, times)
            await arrivals.serve_pod(times)
        else:
            await arrivals.serve_pod(times)
            await arrivals.ask_echo(echo, times)
    return times


def _last_tenth_to_first(seconds: Sequence[float]) -> float:
    """The rate of the last tenth divided by that of the first: below 1, it became slower."""
    tenth = len(seconds) // 10
    return sum(seconds[:tenth]) / sum(seconds[-tenth:])


def _against_echo(name: str, times: Times, slack: float = 1.0) -> list[Figure]:
    ours, bare = Spread.of(times.allocate), Spread.of(times.echo)
    return [
        Figure(
            name=f"{name}: p50 / echo's", value=ours.p50 / bare.p50, unit="x", limit=slack * P50_LIMIT, note=str(ours)
        ),
        Figure(
            name=f"{name}: p99 / echo's",
            value=ours.p99 / bare.p99,
            unit="x",
            limit=slack * P99_LIMIT,
            note=f"echo {bare}",
        ),
    ]


def _preferring(times: Times) -> str:
    return f"{Spread.of(times.prefer)}; it waits for the watch to bring the pod"


def _grant(testbed: Testbed, uuid: str) -> Grant:
    return Grant(uuid=uuid, device_type=testbed.family.resources.device_type, memory=MEMORY_MIB, cores=CORES)
