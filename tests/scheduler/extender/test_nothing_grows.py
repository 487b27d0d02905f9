"""After ten thousand pods' lives a scheduler keeps no more than after a thousand, of whatever kind."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from hami_plugin.errors import ClusterError
from hami_plugin.process.concurrency import Backoff
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.scheduler.extender.extender import Extender, Options
from hami_plugin.simulation.objects import RESOURCES, ObjectStore
from tests.support.memory import MemoryCluster, kept
from tests.support.scale import sized
from tests.support.scheduling import COUNT, FAMILIES, KEYS, binding, cards, manifest, until

NODES = tuple(f"n{number}" for number in range(4))
OPTIONS = Options(
    resync_period=0.05,
    lock_timeout=0.2,
    bind_within=0.01,
    pace=Backoff(first=0.0001, cap=0.001),
    stop_timeout=5.0,
)
LIVES = ("bound", "refused", "too large", "deleted", "ended", "no device", "doubtful", "gone", "lost in a gap")
AWAY = ClusterError("away", status=500)
DENIED = ClusterError("denied", status=422)
SLACK = 600
"""So much may come and go: Events that are remembered for a while, and what is under way."""


class Lives:
    """Pods that come, are decided on in one way or another, and go."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.cluster = MemoryCluster(self.store)
        for name in NODES:
            counted = {COUNT: "40"}
            meta = {"name": name, "annotations": {KEYS.register: cards(name, 4)}}
            status = {"capacity": counted, "allocatable": counted}
            self.store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": status})
        self.service = Extender(self.cluster, FAMILIES, OPTIONS)
        self.number = 0

    async def live(self) -> None:
        """One life."""
        self.number += 1
        name, how = f"p{self.number}", LIVES[self.number % len(LIVES)]
        wish = manifest(name, memory=20_000 if how == "too large" else 100, gpus=0 if how == "no device" else 1)
        pod = self.store.create(RESOURCES["pods"], "team", wish)
        answer = await self.service.filter({"Pod": pod, "NodeNames": list(NODES)})
        if how == "deleted":
            self.store.delete(("pods", "team", name))
            return
        if answer["NodeNames"]:
            await self._bind(pod, answer["NodeNames"][0], how)
        if how == "ended":
            self.store.patch(("pods", "team", name), {"status": {"phase": "Succeeded"}}, part="status")
        if how == "lost in a gap":
            self.service.cache.pods.feed.replace([])
        self.store.delete(("pods", "team", name))

    async def _bind(self, pod, node: str, how: str) -> None:
        match how:
            case "refused":
                self.cluster.refuses["bind"] = [DENIED]
            case "doubtful":
                self.cluster.refuses |= {"bind": [AWAY] * 4, "get_pod": [AWAY] * 4}
            case "gone":
                self.store.delete(("pods", "team", pod["metadata"]["name"]))
                self.store.create(RESOURCES["pods"], "team", manifest(pod["metadata"]["name"]))
        await self.service.bind(binding(pod, node))
        self.cluster.refuses.clear()
        self.store.patch(("nodes", "", node), {"metadata": {"annotations": {NODE_LOCK: None}}})

    async def many(self, count: int) -> Mapping[str, int]:
        """So many lives more, and then what is kept."""
        for _ in range(count):
            await self.live()
        await until(lambda: not self.service.cache.pods.index.entries and not self.service._unfinished)
        await until(lambda: not self.service.cache.pods.binding.pending and not self.service.cache.pods.assumed)
        return kept(self.service, without=[self.cluster, self.store])


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
    return {way: (before.get(way, 0), size) for way, size in after.items() if size > before.get(way, 0) + SLACK}


@pytest.mark.full
async def test_nothing_that_a_scheduler_keeps_grows_with_the_number_of_pods_that_ever_were():
    lives, stop = Lives(), asyncio.Event()
    running = asyncio.create_task(lives.service.run(stop))
    await until(lambda: not lives.service.problems())

    early = await lives.many(1000)
    late = await lives.many(sized(1500, 9000))

    stop.set()
    await running
    assert sum(early.values()) > 500
    assert grown(early, late) == {}


@pytest.mark.parametrize("shape", ["a dict", "a list in a list", "a set of a field"])
async def test_a_leak_that_nobody_has_thought_of_is_found(shape):
    lives = Lives()
    before = kept(lives.service, without=[lives.cluster, lives.store])
    leak = {"a dict": {n: n for n in range(1000)}, "a list in a list": [[n] for n in range(1000)]}.get(
        shape, set(range(1000))
    )
    lives.service._options = replace(lives.service._options)
    lives.service._binder._forgotten = leak

    after = kept(lives.service, without=[lives.cluster, lives.store])

    assert any("_forgotten" in way for way in grown(before, after))
