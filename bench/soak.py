"""``python -m bench.soak``: a hundred thousand Allocates through the real daemon, and what remains of them.

Pods arrive one after the other, each container with a share of its own; the oldest pods end. Meanwhile cards are lost
and return, the kubelet restarts, and unscheduled pods are refused. Every container's limits are compared with its
decision. The process's resources are measured after a warm-up and at the end, and must not have grown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench.cluster import NODE
from bench.figures import Figure
from bench.processes import cpu_seconds, memory
from bench.testbed import Node, Testbed, open_testbed
from hami_plugin.demo.node import install_core
from hami_plugin.errors import HamiError
from hami_plugin.model.device import physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.simulation.kubelet import AdmissionError, StartError

SETTINGS = {
    "decisionWaitSeconds": 0.2,
    "health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 0.5, "holdCapSeconds": 0.5},
}
ALIVE = 6
"""Pods that stay on the node at a time."""
AHEAD = 3
"""Pods that are decided and in the API server before their turn comes."""
WARMUP = 5_000
"""Allocates before the first measurement: caches and buffers have their size then."""
MIN_MIB, SPREAD_MIB = 16, 997
ERRORS_PER_LOSS, ERROR_EVERY_S = 16, 0.25
"""How many application errors a card reports before one card is lost, and how often."""
LOCKED_S = 0.1
"""How long the next pod is not bound after one with a decision was refused: a node lock outlives its failed owner."""
START_EVERY, UNSCHEDULED_EVERY, RESTART_EVERY = 4, 100, 625
"""In pods: how often containers are started too, a pod comes that nobody scheduled, and the kubelet restarts."""

RSS_GROWTH_MIB = 4.0
JOURNAL_KIB = 1024
STATE_FILES = frozenset({"journal", "health.json", "lock"})
"""What a state directory has. The health file comes with the first fault, so its time is not the soak's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the daemon holds at a moment."""

    resident: float
    descriptors: int
    threads: int
    journal_kib: float
    foreign_files: int


@dataclass(slots=True, kw_only=True)
class Tally:
    """What happened so far. ``wrong`` are containers whose limits are not those of their decision."""

    allocates: int = 0
    refused: int = 0
    flaps: int = 0
    restarts: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A pod in the API server that is not bound yet. ``cards`` and ``sizes`` in MiB are by container."""

    number: int
    pod: PodView
    cards: Mapping[str, str]
    sizes: Mapping[str, int]


class Losses:
    """Which cards were lost when. A pod may fail for its own cards' sake, and for nothing else."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._ailing = ""

    def lost(self, uuid: str) -> None:
        self._times[uuid] += 1
        self._ailing = uuid

    def healed(self) -> None:
        """The kubelet offers every share again."""
        self._ailing = ""

    def before(self) -> Mapping[str, int]:
        """How often each card had been lost, and was well again, by now."""
        return Counter(self._times) - Counter([self._ailing])

    def explain(self, planned: Planned, before: Mapping[str, int], error: HamiError) -> bool:
        """Whether ``error`` names a card of the pod that was lost since ``before``."""
        lost = {uuid for uuid in planned.cards.values() if self._times[uuid] > before.get(uuid, 0)}
        return any(uuid in str(error) for uuid in lost)


class Soak:
    """The life of one node. ``run`` until so many Allocates were answered, or the time is over.

    Pods are bound and admitted one at a time, as under a scheduler's node lock. Beside that, the next pods are decided
    and created, and those before start and end.
    """

    def __init__(self, testbed: Testbed) -> None:
        self.tally = Tally()
        self._testbed = testbed
        self._alive: deque[PodView] = deque()
        self._pods = self._served = 0
        self._victims = self._in_turn()
        self._losses = Losses()
        self._planned: deque[asyncio.Task[Planned]] = deque()
        self._beside: set[asyncio.Task[None]] = set()

    async def run(self, allocates: int, *, until: float) -> None:
        """``until`` is on the monotonic clock."""
        flapping = asyncio.create_task(self._flap())
        try:
            while self.tally.allocates < allocates and time.monotonic() < until:
                if flapping.done():
                    flapping.result()
                await self._next_pod()
            await self._finished(0)
        finally:
            flapping.cancel()
            await asyncio.wait([flapping])
            await asyncio.to_thread(self._heal)

    async def clear(self) -> None:
        """Every pod goes, every card is well again, and the daemon has written down what there is to write."""
        while self._planned:
            await self._testbed.cluster.delete_pod((await self._planned.popleft()).pod.name)
        while self._alive:
            await self._end(self._alive.popleft())
        await self._whole()
        self._losses.healed()
        await self._testbed.cluster.recorded()

    async def _plan(self) -> Planned:
        """Decide about a pod as a scheduler does, by the cards that are offered, and create it."""
        await self._offers(bool, "any share")
        self._pods += 1
        number, offered = self._pods, self._offered()
        names = [f"c{n}" for n in range(len(self._testbed.uuids))]
        cards = {name: offered[(number + n) % len(offered)] for n, name in enumerate(names)}
        sizes = {name: MIN_MIB + (number * 8 + n) % SPREAD_MIB for n, name in enumerate(names)}
        device_type = self._testbed.family.resources.device_type
        decision = [[Grant(uuid=cards[name], device_type=device_type, memory=sizes[name], cores=0)] for name in names]
        made = await self._testbed.cluster.create_pod(f"pod-{number}", decision, lock=False, bound=False)
        return Planned(number=number, pod=pod_view(made), cards=cards, sizes=sizes)

    def _offered(self) -> list[str]:
        """The cards that the kubelet has healthy shares of, in order."""
        offered = {physical_id(one) for one in self._testbed.kubelet.ledger.healthy(self._testbed.resource)}
        return [uuid for uuid in self._testbed.uuids if uuid in offered]

    async def _next_pod(self) -> None:
        self._served += 1
        if self._served % RESTART_EVERY == 0:
            await self._finished(0)
            await self._testbed.restart_kubelet(0.01)
            self.tally.restarts += 1
        if self._served % UNSCHEDULED_EVERY == 0:
            await self._unscheduled()
        while len(self._alive) >= ALIVE:
            self._go_on(self._end(self._alive.popleft()))
        await self._finished(ALIVE)
        while len(self._planned) < AHEAD:
            self._planned.append(asyncio.create_task(self._plan()))
        planned = await self._planned.popleft()
        if not set(planned.cards.values()) <= set(self._offered()):  # a scheduler binds no pod to a card that is lost
            self._go_on(self._testbed.cluster.delete_pod(planned.pod.name))
            return
        before = self._losses.before()
        await self._testbed.cluster.bind(planned.pod.name)
        planned = replace(planned, pod=replace(planned.pod, node=NODE))
        try:
            await self._testbed.kubelet.admit(planned.pod)
        except AdmissionError as error:
            self._refused(planned, error, before)
            await self._end(planned.pod)
            await asyncio.sleep(LOCKED_S)
            return
        self.tally.allocates += len(planned.sizes)
        self._go_on(self._started(planned, before))

    async def _started(self, planned: Planned, before: Mapping[str, int]) -> None:
        """The pod's containers start, some of them by PreStartContainer, with the limits that were decided."""
        pod = planned.pod
        try:
            for container in pod.containers if planned.number % START_EVERY == 0 else ():
                await self._testbed.kubelet.start_container(pod.uid, container.name)
        except StartError as error:
            self._refused(planned, error, before)
        for container in pod.containers:
            (held,) = self._testbed.kubelet.ledger.held_by(pod.uid, container.name).values()
            self._compare(planned, container.name, held.answer.edits.env)
        await self._testbed.cluster.set_running(pod.name)
        self._alive.append(pod)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        self._beside.add(asyncio.create_task(work))

    async def _finished(self, most: int) -> None:
        """Wait until no more than ``most`` starts and ends go on."""
        while len(self._beside) > most:
            done, self._beside = await asyncio.wait(self._beside, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def _compare(self, planned: Planned, container: str, env: Mapping[str, str]) -> None:
        """The limit, and the one card that the container sees."""
        got = (env.get("CUDA_DEVICE_MEMORY_LIMIT_0", ""), env.get("NVIDIA_VISIBLE_DEVICES", ""))
        wanted = (f"{planned.sizes[container]}m", planned.cards[container])
        if got != wanted:
            self.tally.wrong.append(f"{planned.pod.name}/{container}: {got} instead of {wanted}")

    def _refused(self, planned: Planned, error: HamiError, before: Mapping[str, int]) -> None:
        self.tally.refused += 1
        if not self._losses.explain(planned, before, error):
            self.tally.lost.append(f"{planned.pod.name}: {error}")

    async def _unscheduled(self) -> None:
        """A pod without a decision: it is refused, and leaves nothing."""
        manifest = await self._testbed.cluster.create_pod(f"unscheduled-{self._served}", [], lock=False, wants=1)
        pod = pod_view(manifest)
        try:
            await self._testbed.kubelet.admit(pod)
        except AdmissionError:
            self.tally.refused += 1
        else:
            self.tally.wrong.append(f"{pod.name} was served without a decision")
        await self._end(pod)

    async def _end(self, pod: PodView) -> None:
        """The pod ends and is deleted; its folders go with it, as HAMi's monitor removes them."""
        self._testbed.kubelet.remove(pod.uid)
        await self._testbed.cluster.delete_pod(pod.name)
        await asyncio.to_thread(self._sweep, pod.uid)

    def _sweep(self, uid: str) -> None:
        for folder in (self._testbed.directory / "hook").glob(f"vgpu/containers/{uid}*"):
            rmtree(folder, ignore_errors=True)

    @property
    def _shares(self) -> int:
        return len(self._testbed.uuids) * self._testbed.node.split

    async def _whole(self) -> None:
        """Wait until the kubelet has every share again."""
        await self._offers(lambda shares: shares == self._shares, "all shares")

    async def _offers(self, condition: Callable[[int], bool], what: str) -> None:
        kubelet, resource = self._testbed.kubelet, self._testbed.resource
        await self._testbed.until(lambda: condition(kubelet.allocatable(resource)), what)

    async def _flap(self) -> None:
        """Application errors arrive all the time and change nothing. Now and then one card is lost."""
        while True:
            for _ in range(ERRORS_PER_LOSS):
                await self._inject("xid", next(self._victims), 13)
                await asyncio.sleep(ERROR_EVERY_S)
            victim = next(self._victims)
            self._losses.lost(self._testbed.uuids[victim])
            await self._inject("lost", victim)
            await self._offers(lambda shares: shares < self._shares, "the loss of a card")
            await self._inject("back", victim)
            await self._whole()
            self._losses.healed()

    async def _inject(self, fault: str, victim: int, value: int = 0) -> None:
        await asyncio.to_thread(self._testbed.hardware.simulator.inject, fault, victim, value)
        self.tally.flaps += 1

    def _heal(self) -> None:
        for index in range(len(self._testbed.uuids)):
            self._testbed.hardware.simulator.inject("back", index)

    def _in_turn(self) -> Iterator[int]:
        while True:
            yield from range(len(self._testbed.uuids))


def _in_memory() -> Path | None:
    """A directory in memory for the node, if there is one: the disk's speed is not the daemon's."""
    memory_folder = Path("/dev/shm")
    return memory_folder if memory_folder.is_dir() and os.access(memory_folder, os.W_OK) else None


def footprint(testbed: Testbed) -> Footprint:
    """What the daemon's process and its state directory have now."""
    process, state = (
        Path(f"/proc/{testbed.pid}"),
        [path for path in (testbed.directory / "state").rglob("*") if path.is_file()],
    )
    return Footprint(
        resident=memory(testbed.pid).resident,
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        journal_kib=sum(path.stat().st_size for path in state) / 1024,
        foreign_files=sum(path.name not in STATE_FILES for path in state),
    )


@contextmanager
def one_core_apart() -> Iterator[set[int]]:
    """A core that neither this process nor its children use; with a single core, all share it.

    Kubelet and daemon alternate: with a core of its own, neither waits for the other's threads.
    """
    cores = os.sched_getaffinity(0)
    apart = {min(cores)}
    os.sched_setaffinity(0, cores - apart or cores)
    try:
        yield apart
    finally:
        os.sched_setaffinity(0, cores)


def _confine(pid: int, cores: set[int]) -> None:
    """All threads of a process, and those that they will start."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


async def measure(*, allocates: int, minutes: float) -> list[Figure]:
    """Soak one node, and report what grew."""
    with one_core_apart() as core:
        async with open_testbed(Node(split=16), SETTINGS, within=_in_memory()) as testbed:
            return await _soaked(testbed, core, allocates=allocates, minutes=minutes)


async def _soaked(testbed: Testbed, core: set[int], *, allocates: int, minutes: float) -> list[Figure]:
    install_core(testbed.directory / "hook" / "vgpu")
    await testbed.start_daemon()
    _confine(testbed.pid, core)
    await testbed.published()
    soak, began = Soak(testbed), time.monotonic()
    await soak.run(min(WARMUP, allocates // 4), until=began + 60 * minutes)
    await soak.clear()
    before, log, done = footprint(testbed), testbed.log_lines(), soak.tally.allocates
    cpu, resumed = cpu_seconds(testbed.pid), time.monotonic()
    await soak.run(allocates, until=began + 60 * minutes)
    seconds, done = time.monotonic() - began, soak.tally.allocates - done
    rate, cpu = done / (time.monotonic() - resumed), cpu_seconds(testbed.pid) - cpu
    await soak.clear()
    after, lines = footprint(testbed), testbed.log_lines() - log
    tally = soak.tally
    for words in (*tally.wrong[:5], *tally.lost[:5]):
        print(f"      {words}")
    return [
        Figure(name="Allocates", value=tally.allocates, limit=allocates, floor=True, note=f"in {seconds:.0f} s"),
        Figure(name="Allocates a second", value=rate, note="after the warm-up"),
        Figure(name="The daemon's CPU for each", value=1000 * cpu / max(1, done), unit="ms", note="of one core"),
        Figure(name="Containers with another share's limits", value=len(tally.wrong), limit=0),
        Figure(name="Pods refused without a reason of theirs", value=len(tally.lost), limit=0),
        Figure(name="Pods refused", value=tally.refused, note="unscheduled pods, and while a card was lost"),
        Figure(name="Health events", value=tally.flaps),
        Figure(name="Kubelet restarts", value=tally.restarts),
        _grown("RSS", before.resident, after.resident, "MiB", RSS_GROWTH_MIB),
        _grown("Open descriptors", before.descriptors, after.descriptors, "", 2),
        _grown("Threads", before.threads, after.threads, "", 2),
        Figure(name="Journal and state at the end", value=after.journal_kib, unit="KiB", limit=JOURNAL_KIB),
        _grown("Files of the state directory", before.foreign_files, after.foreign_files, "", 0),
        Figure(name="Log lines for each Allocate", value=lines / max(1, tally.allocates), limit=2.0),
    ]


def _grown(name: str, before: float, after: float, unit: str, limit: float) -> Figure:
    told = f"{before:.1f} after the warm-up, {after:.1f} at the end"
    return Figure(name=f"{name}: growth", value=after - before, unit=unit, limit=limit, note=told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--allocates", type=int, default=100_000, help="stop after so many (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so long (default: %(default)s)")
    options = parser.parse_args()
    figures = asyncio.run(measure(allocates=options.allocates, minutes=options.minutes))
    for figure in figures:
        print(figure)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
