"""``python -m bench.soak``: a hundred thousand Allocates through the real daemon, and what is left of them.

Pods come one after the other, each with a share of its own on every GPU; the oldest make room. Meanwhile cards are lost
and come back, the kubelet restarts, and pods that nobody scheduled are refused. Every container's limits are compared
with its decision. What the process holds is measured after a warm-up and at the end: it must be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench.figures import Figure
from bench.processes import memory
from bench.stage import Node, Stage, staged
from hami_plugin.demo.node import install_core
from hami_plugin.errors import HamiError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.simulation.kubelet import AdmissionError, StartError

SETTINGS = {
    "decisionWaitSeconds": 0.2,
    "health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 0.5, "holdCapSeconds": 0.5},
}
ALIVE = 6
"""Pods that stay on the node at a time."""
WARMUP = 5_000
"""Allocates before the first measurement: caches and buffers have their size then."""
MIN_MIB, SPREAD_MIB = 16, 997
ERRORS_PER_LOSS, ERROR_EVERY_S = 16, 0.25
"""How many errors of programs a card tells of before one is lost, and how often."""
START_EVERY, STRANGER_EVERY, RESTART_EVERY = 4, 100, 625
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


class Soak:
    """The life of one node. ``run`` until so many Allocates were answered, or the time is over.

    Pods are bound and admitted one at a time, as under a scheduler's node lock. Starts and ends of containers go on
    beside the next pod's Allocates.
    """

    def __init__(self, stage: Stage) -> None:
        self.tally = Tally()
        self._stage = stage
        self._alive: deque[PodView] = deque()
        self._pods = 0
        self._victims = self._in_turn()
        self._losses, self._ailing = 0, False
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
            self._heal()

    async def clear(self) -> None:
        """Every pod goes, every card is well again, and the daemon has written down what there is to write."""
        while self._alive:
            await self._end(self._alive.popleft())
        await self._whole()
        await self._stage.cluster.recorded()

    async def _next_pod(self) -> None:
        self._pods += 1
        if self._pods % RESTART_EVERY == 0:
            await self._finished(0)
            await self._stage.restart_kubelet(0.01)
            self.tally.restarts += 1
        if self._pods % STRANGER_EVERY == 0:
            await self._stranger()
        while len(self._alive) >= ALIVE:
            self._go_on(self._end(self._alive.popleft()))
        await self._finished(ALIVE)
        sizes = {f"c{n}": MIN_MIB + (self._pods * 8 + n) % SPREAD_MIB for n in range(len(self._stage.uuids))}
        decision = [
            [Grant(uuid=uuid, device_type=self._stage.family.device_type, memory=size, cores=0)]
            for uuid, size in zip(self._stage.uuids, sizes.values(), strict=True)
        ]
        losses = self._losses - self._ailing
        pod = pod_view(await self._stage.cluster.create_pod(f"pod-{self._pods}", decision, lock=False))
        try:
            await self._stage.kubelet.admit(pod)
        except AdmissionError as error:
            self._refused(pod, error, losses)
            await self._end(pod)
            await self._whole()
            return
        self.tally.allocates += len(sizes)
        self._go_on(self._started(pod, sizes, losses, starts=self._pods % START_EVERY == 0))

    async def _started(self, pod: PodView, sizes: dict[str, int], losses: int, *, starts: bool) -> None:
        """The pod's containers start, some of them by PreStartContainer, with the limits that were decided."""
        try:
            if starts:
                starting = [self._stage.kubelet.start_container(pod.uid, one.name) for one in pod.containers]
                await asyncio.gather(*starting)
        except StartError as error:
            self._refused(pod, error, losses)
        for container in pod.containers:
            (held,) = self._stage.kubelet.ledger.held_by(pod.uid, container.name).values()
            self._compare(pod, container.name, held.answer.edits.env.get("CUDA_DEVICE_MEMORY_LIMIT_0", ""), sizes)
        await self._stage.cluster.set_running(pod.name)
        self._alive.append(pod)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        self._beside.add(asyncio.create_task(work))

    async def _finished(self, most: int) -> None:
        """Wait until no more than ``most`` starts and ends go on."""
        while len(self._beside) > most:
            done, self._beside = await asyncio.wait(self._beside, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def _compare(self, pod: PodView, container: str, limit: str, sizes: dict[str, int]) -> None:
        if limit != f"{sizes[container]}m":
            self.tally.wrong.append(f"{pod.name}/{container}: {limit!r} instead of {sizes[container]}m")

    def _refused(self, pod: PodView, error: HamiError, losses: int) -> None:
        """A pod may fail where a card was lost meanwhile, and for nothing else."""
        self.tally.refused += 1
        if losses == self._losses:
            self.tally.lost.append(f"{pod.name}: {error}")

    async def _stranger(self) -> None:
        """A pod without a decision: it is refused, and leaves nothing."""
        manifest = await self._stage.cluster.create_pod(f"stranger-{self._pods}", [], lock=False, wants=1)
        pod = pod_view(manifest)
        try:
            await self._stage.kubelet.admit(pod)
        except AdmissionError:
            self.tally.refused += 1
        else:
            self.tally.wrong.append(f"{pod.name} was served without a decision")
        await self._end(pod)

    async def _end(self, pod: PodView) -> None:
        """The pod ends and is deleted; its folders go with it, as HAMi's monitor removes them."""
        self._stage.kubelet.remove(pod.uid)
        await self._stage.cluster.delete_pod(pod.name)
        await asyncio.to_thread(self._sweep, pod.uid)

    def _sweep(self, uid: str) -> None:
        for folder in (self._stage.directory / "hook").glob(f"vgpu/containers/{uid}*"):
            rmtree(folder, ignore_errors=True)

    @property
    def _shares(self) -> int:
        return len(self._stage.uuids) * self._stage.node.split

    async def _whole(self) -> None:
        """Wait until the kubelet has every share again."""
        await self._offers(lambda shares: shares == self._shares, "all shares")

    async def _offers(self, condition: Callable[[int], bool], what: str) -> None:
        kubelet, resource = self._stage.kubelet, self._stage.resource
        await self._stage.until(lambda: condition(kubelet.allocatable(resource)), what)

    async def _flap(self) -> None:
        """Errors of programs arrive all the while: they leave the card as it is. Now and then one card is lost."""
        while True:
            for _ in range(ERRORS_PER_LOSS):
                self._stage.hardware.simulator.inject("xid", next(self._victims), 13)
                self.tally.flaps += 1
                await asyncio.sleep(ERROR_EVERY_S)
            victim, self._ailing = next(self._victims), True
            self._losses += 1
            self._stage.hardware.simulator.inject("lost", victim)
            self.tally.flaps += 1
            await self._offers(lambda shares: shares < self._shares, "the loss of a card")
            self._stage.hardware.simulator.inject("back", victim)
            await self._whole()
            self._ailing = False

    def _heal(self) -> None:
        for index in range(len(self._stage.uuids)):
            self._stage.hardware.simulator.inject("back", index)

    def _in_turn(self) -> Iterator[int]:
        while True:
            yield from range(len(self._stage.uuids))


def _in_memory() -> Path | None:
    """Where the kubelet's directory is, if there is such a place: its disk's speed is nothing of the daemon's."""
    memory_folder = Path("/dev/shm")
    return memory_folder if memory_folder.is_dir() and os.access(memory_folder, os.W_OK) else None


def footprint(stage: Stage) -> Footprint:
    """What the daemon's process and its state directory have now."""
    process, state = (
        Path(f"/proc/{stage.pid}"),
        [path for path in (stage.directory / "state").rglob("*") if path.is_file()],
    )
    return Footprint(
        resident=memory(stage.pid).resident,
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        journal_kib=sum(path.stat().st_size for path in state) / 1024,
        foreign_files=sum(path.name not in STATE_FILES for path in state),
    )


async def measure(*, allocates: int, minutes: float) -> list[Figure]:
    """Soak one node, and tell what grew."""
    async with staged(Node(split=16), SETTINGS, kubelet_in=_in_memory()) as stage:
        install_core(stage.directory / "hook" / "vgpu")
        await stage.start_daemon()
        await stage.published()
        soak, began = Soak(stage), time.monotonic()
        await soak.run(min(WARMUP, allocates // 4), until=began + 60 * minutes)
        await soak.clear()
        before, log = footprint(stage), stage.log_lines()
        await soak.run(allocates, until=began + 60 * minutes)
        seconds = time.monotonic() - began
        await soak.clear()
        after, lines = footprint(stage), stage.log_lines() - log
    tally = soak.tally
    for words in (*tally.wrong[:5], *tally.lost[:5]):
        print(f"      {words}")
    return [
        Figure(name="Allocates", value=tally.allocates, limit=allocates, floor=True, note=f"in {seconds:.0f} s"),
        Figure(name="Containers with another share's limits", value=len(tally.wrong), limit=0),
        Figure(name="Pods refused without a reason of theirs", value=len(tally.lost), limit=0),
        Figure(name="Pods refused", value=tally.refused, note="strangers, and while a card was lost"),
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
