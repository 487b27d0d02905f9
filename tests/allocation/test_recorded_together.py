"""The kubelet asks for a pod's containers one after the other; what it got within a moment is one write."""

import asyncio

import hami_plugin.allocation.settlement
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_SUCCESS
from tests.support.builders import TO_ALLOCATE, container, grant, ids, pod
from tests.support.node import until
from tests.support.sleeping import Sleeping


async def test_a_container_that_follows_at_once_joins_the_write_of_the_first(node, monkeypatch):
    node.settlement._together = 1.0
    moment, naps = asyncio.Event(), []

    async def nap(seconds):
        naps.append(seconds)
        await moment.wait()

    monkeypatch.setattr(hami_plugin.allocation.settlement, "asyncio", Sleeping(nap))
    node.cluster.annotate(**{NODE_LOCK: "2026-08-21T10:11:12+08:00,default,a"})
    node.cluster.add(pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]]))

    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: naps == [1.0])
    await node.allocator.allocate(ids((1, 0)))
    moment.set()
    await node.settled()

    assert node.cluster.bodies == [{TO_ALLOCATE: ";;", BIND_PHASE: PHASE_SUCCESS}, {NODE_LOCK: None}]
