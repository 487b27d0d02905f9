"""The kubelet asks for a pod's containers one after the other; what it got within a moment is one write."""

import asyncio

from hami_plugin.wire.keys import BIND_PHASE, NODE_LOCK, PHASE_SUCCESS
from tests.support.builders import TO_ALLOCATE, container, grant, ids, pod


async def test_a_container_that_follows_at_once_joins_the_write_of_the_first(node):
    node.settlement._together = 0.2
    node.cluster.annotate(**{NODE_LOCK: "2026-08-21T10:11:12+08:00,default,a"})
    node.cluster.add(pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]]))

    await node.allocator.allocate(ids((0, 0)))
    await asyncio.sleep(0.01)
    await node.allocator.allocate(ids((1, 0)))
    await node.settled()

    assert node.cluster.bodies == [{TO_ALLOCATE: ";;", BIND_PHASE: PHASE_SUCCESS}, {NODE_LOCK: None}]
