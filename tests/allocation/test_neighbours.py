"""Many pods, forged ones and recreated ones: does each get its own, beside the others?"""

from dataclasses import replace

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from tests.support.builders import container, decision, grant, pod, received, uuid
from tests.support.node import Node


@pytest.mark.scenario("A1")
async def test_64_pods_in_a_burst_each_get_their_own(tmp_path):
    node = Node(root=tmp_path, devices=64)
    kubelet = node.kubelet()
    pods = [node.cluster.add(pod(f"p{n}", pieces=[[grant(n, 1000 + n)]])) for n in range(64)]

    for item in pods:
        edits = await kubelet.admit(item)
        await kubelet.start(item)
        assert received(edits["main"])[0] == item.uid
    await node.settled()

    assert node.observer.allocations == ["ok"] * 64
    assert [held.pod for held in node.ledger.held.values()] == [item.name for item in pods]


async def test_a_forged_pod_beside_an_honest_one_gets_nothing_of_it(tmp_path):
    """The author of a pod writes another pod's decision, more memory, and an earlier time."""
    node = Node(root=tmp_path)
    kubelet = node.kubelet()
    honest = pod("honest", [container(count=1, memory=2000)], [[grant(1, 2000)]])
    greedy = decision([[grant(1, 60_000)]])
    forged = pod("forged", [container(count=1, memory=100)], created="1970-01-01T00:00:00Z", annotations=greedy)
    node.cluster.add(forged)
    with pytest.raises(RefusedError) as caught:
        await kubelet.admit(forged)
    assert caught.value.reason is RefusalReason.EXCEEDS_REQUEST
    node.cluster.add(honest)

    edits = await kubelet.admit(honest)
    await kubelet.start(honest)

    assert received(edits["main"]) == ("honest-uid", "main", {uuid(1): "2000m,10"})
    assert ("forged", "ExceedsRequest") in {event[:2] for event in await node.told()}


@pytest.mark.scenario("A9")
async def test_a_pod_recreated_under_its_name_gets_its_own_decision(tmp_path):
    node = Node(root=tmp_path)
    kubelet = node.kubelet()
    first = node.cluster.add(pod("web-0", pieces=[[grant(0, 1000)]]))
    await kubelet.admit(first)
    node.cluster.remove(first)
    kubelet.forget(first)
    second = node.cluster.add(replace(pod("web-0", pieces=[[grant(0, 2000)]]), uid="second"))

    edits = await kubelet.admit(second)
    await kubelet.start(second)
    await node.settled()

    assert received(edits["main"]) == ("second", "main", {uuid(0): "2000m,10"})
