"""A pod that no scheduler of HAMi decided about: whole devices, or nothing."""

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from tests.support.builders import CARD_MIB, container, grant, ids, pod, snapshot, uuid
from tests.support.node import Node


@pytest.fixture
async def serving(tmp_path):
    node = Node(root=tmp_path, serve_unannotated=True)
    yield node
    await node.settlement.close()
    node.journal.close()


async def refused(node, replicas) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(replicas)
    return caught.value


@pytest.mark.scenario("A11")
async def test_it_is_refused_with_the_remedy_unless_the_operator_says_otherwise(node):
    node.cluster.add(pod("s", [container(count=1)], scheduler="default-scheduler"))

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_SCHEDULED
    assert "default-scheduler decided nothing" in refusal.message
    assert "unannotatedPods: serve" in refusal.hint
    assert ("s", "NotScheduledByHAMi") in {event[:2] for event in await node.told()}


async def test_one_that_was_refused_stands_in_nobodys_way_until_its_end_is_seen(node):
    """The kubelet has failed it and goes on with the next pod, while the watch still shows it as it was."""
    node.cluster.add(pod("s", [container(count=1)]))
    await refused(node, ids((0, 0)))

    node.cluster.add(pod("a", pieces=[[grant(2)]]))
    chosen = await node.allocator.prefer(ids((0, 0), (1, 0), (2, 0)), (), 1)
    answer = await node.allocator.allocate(chosen)

    assert answer.edits.env["POD"] == "a-uid"


async def test_those_that_were_refused_are_forgotten_with_their_pods(node):
    for name in ("s", "t"):
        gone = node.cluster.add(pod(name, [container(count=1)]))
        await refused(node, ids((0, 0)))
        node.cluster.remove(gone)
    node.allocator._waiting.known()

    assert not node.allocator._waiting._turned_away


@pytest.mark.scenario("A11")
async def test_it_gets_the_kubelets_devices_whole(serving):
    serving.cluster.add(pod("s", [container(count=2)]))

    edits = await serving.allocator.allocate(ids((2, 1), (0, 0)))

    assert edits.edits.env["DEVICES"] == f"{uuid(0)},{uuid(2)}"
    assert (edits.edits.env["LIMIT_0"], edits.edits.env["LIMIT_1"]) == (f"{CARD_MIB}m,100",) * 2


async def test_each_container_is_served_in_turn_and_a_repeat_repeats(serving):
    serving.cluster.add(pod("s", [container("one", 1), container("web"), container("two", 1)]))

    names = [(await serving.allocator.allocate(ids((card, 0)))).edits.env["CONTAINER"] for card in (0, 1, 1)]

    assert names == ["one", "two", "two"]


async def test_a_device_that_somebody_shares_is_not_whole(serving):
    serving.cluster.add(pod("a", pieces=[[grant(0)]]))
    await serving.allocator.allocate(ids((0, 0)))
    serving.cluster.add(pod("s", [container(count=1)]))

    refusal = await refused(serving, ids((0, 1)))

    assert refusal.reason is RefusalReason.DEVICE_SHARED
    assert "default/a" in refusal.message


@pytest.mark.scenario("A12")
async def test_two_shares_of_one_device_are_not_two_devices(serving):
    serving.cluster.add(pod("s", [container(count=2)]))

    refusal = await refused(serving, ids((0, 0), (0, 1)))

    assert refusal.reason is RefusalReason.DEVICE_SHARED
    assert "2 shares of 1 devices" in refusal.message


async def test_a_kubelet_that_asks_is_led_to_a_device_of_its_own(serving):
    kubelet = serving.kubelet()
    for name in ("a", "b", "c"):
        owner = serving.cluster.add(pod(name, pieces=[[grant("abc".index(name))]]))
        await kubelet.admit(owner)
    stranger = serving.cluster.add(pod("s", [container(count=1)]))

    edits = await kubelet.admit(stranger)
    await kubelet.start(stranger)

    assert edits["main"].edits.env["DEVICES"] == uuid(3)


async def test_a_device_that_goes_while_a_decision_is_awaited_is_refused(serving):
    serving.decide(wait=0.05, serve_unannotated=True)
    serving.cluster.add(pod("s", [container(count=1)]))
    changes = serving.pods.changes
    changed = changes.changed

    async def gone_meanwhile(*since, **more):
        serving.snapshot.set(snapshot(2))
        return await changed(*since, **more)

    changes.changed = gone_meanwhile

    with pytest.raises(RefusedError) as caught:
        await serving.allocator.allocate(ids((3, 0)))
    assert caught.value.reason is RefusalReason.UNKNOWN_DEVICE


async def test_its_end_makes_the_device_free(serving):
    kubelet = serving.kubelet()
    stranger = serving.cluster.add(pod("s", [container(count=4)]))
    await kubelet.admit(stranger)
    serving.cluster.change(stranger, phase="Succeeded")
    kubelet.forget(stranger)

    again = serving.cluster.add(pod("t", [container(count=4)]))

    assert (await kubelet.admit(again))["main"].edits.env["POD"] == "t-uid"
