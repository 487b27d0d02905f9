"""Answers of the API server that come after the watch has told of an object's end: what is gone stays gone."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.scheduler.extender.extender import Extender, Options
from hami_plugin.simulation.objects import RESOURCES, ObjectStore
from tests.support.memory import MemoryCluster
from tests.support.scheduling import COUNT, FAMILIES, KEYS, cards, manifest, until


class Late(MemoryCluster):
    """The answers to some calls come when they are let through."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.holds: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}

    async def patch_node(self, name: str, annotations: Mapping[str, str | None], *, resource_version: str) -> NodeView:
        answer = await super().patch_node(name, annotations, resource_version=resource_version)
        await self._wait("patch_node")
        return answer

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        answer = await super().get_pod(namespace, name)
        await self._wait("get_pod")
        return answer

    async def _wait(self, call: str) -> None:
        if call in self.holds:
            await self.held.setdefault(call, asyncio.Event()).wait()


@pytest.fixture
async def late():
    store = ObjectStore()
    cluster = Late(store)
    meta = {"name": "n1", "annotations": {KEYS.register: cards("n1", 1)}}
    status = {"capacity": {COUNT: "10"}, "allocatable": {COUNT: "10"}}
    store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": status})
    service, stop = Extender(cluster, FAMILIES, Options(resync_period=0.02)), asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    await until(lambda: service.cache.nodes.listed.value or running.done())
    yield store, cluster, service
    stop.set()
    await running


async def test_a_node_that_went_while_it_was_written_to_does_not_come_back(late):
    store, cluster, service = late
    cluster.holds.add("patch_node")
    store.patch(("nodes", "", "n1"), {"metadata": {"annotations": {KEYS.handshake: "Reported_2020.01.01 00:00:00"}}})
    await until(lambda: cluster.held)
    store.delete(("nodes", "", "n1"))
    await until(lambda: not service.cache.nodes.node_infos)

    cluster.holds.clear()
    cluster.held["patch_node"].set()
    for _ in range(20):
        await asyncio.sleep(0)

    assert not service.cache.nodes.node_infos
    assert not service.cache.nodes._known


async def test_a_pod_that_went_while_it_was_looked_at_does_not_come_back(late):
    """The watch is behind a decision of ours, so the pod is asked about, and then its end comes before the answer."""
    store, cluster, service = late
    pod = store.create(RESOURCES["pods"], "team", manifest("a"))
    assert (await service.filter({"Pod": pod, "NodeNames": ["n1"]}))["NodeNames"]
    uid = pod["metadata"]["uid"]
    await until(lambda: not service.cache.pods.assumed)
    known = service.cache.pods.index.entries[uid]
    service.cache.pods.assume(known.pod)
    service.cache.pods.confirm(replace(known.pod, resource_version="999999"))
    cluster.holds.add("get_pod")
    await until(lambda: "get_pod" in cluster.held)
    store.delete(("pods", "team", "a"))
    await until(lambda: not service.cache.pods.index.entries)

    cluster.held["get_pod"].set()
    for _ in range(20):
        await asyncio.sleep(0)

    assert not service.cache.pods.index.entries
