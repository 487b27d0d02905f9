"""Is a pod found although the watch that should have told of it has stalled?"""

import pytest

from hami_plugin.errors import RefusedError
from tests.support.builders import container, grant, ids, pod, uuid


@pytest.fixture
def stalled(node):
    """A node whose watch tells of nothing: what the API server has comes by ``catch_up`` alone."""
    node.cluster.lagging, node.asked = True, 0

    def refresh():
        node.asked += 1
        node.cluster.catch_up()
        return node.asked == 1

    node.refresh = refresh
    return node


@pytest.mark.scenario("P7")
async def test_before_a_pod_is_refused_as_unknown_this_nodes_pods_are_read_again(stalled):
    stalled.cluster.add(pod("late", pieces=[[grant(2)]]))

    edits = (await stalled.allocator.allocate(ids((2, 0)))).edits

    assert edits.env["POD"] == "late-uid"
    assert stalled.asked == 1


async def test_ids_of_a_pod_that_runs_are_a_later_pods_that_the_watch_has_not_told_of(stalled):
    """The kubelet frees a pod's ids before anybody hears of its end, and may give them to the next at once."""
    stalled.cluster.lagging = False
    old = stalled.cluster.add(pod("old", pieces=[[grant(2)]]))
    await stalled.allocator.allocate(ids((2, 0)))
    await stalled.settlement.close()
    stalled.cluster.change(old, phase="Running")
    stalled.cluster.lagging = True
    stalled.cluster.add(pod("late", pieces=[[grant(2)]]))

    edits = (await stalled.allocator.allocate(ids((2, 0)))).edits

    assert edits.env["POD"] == "late-uid"


async def test_before_a_device_is_advised_at_random_this_nodes_pods_are_read_again(stalled):
    stalled.cluster.add(pod("late", [container("main", 1)], pieces=[[grant(3)]]))
    available = ids((0, 0), (1, 0), (2, 0), (3, 0))

    chosen = await stalled.allocator.prefer(available, (), 1)

    assert list(chosen) == ids((3, 0))
    assert stalled.asked == 1


async def test_a_pod_that_was_refused_for_want_of_a_decision_is_not_who_the_kubelet_asks_for_next(stalled):
    stalled.cluster.lagging = False
    stalled.cluster.add(pod("stranger", [container("main", 1)]))
    with pytest.raises(RefusedError, match="decided nothing"):
        await stalled.allocator.allocate(ids((0, 0)))
    stalled.cluster.lagging = True
    stalled.cluster.add(pod("late", [container("main", 1)], pieces=[[grant(3)]]))

    chosen = await stalled.allocator.prefer(ids((0, 0), (1, 0), (2, 0), (3, 0)), (), 1)

    assert list(chosen) == ids((3, 0))


async def test_a_pod_that_nobody_knows_is_refused_when_it_is_not_yet_time_to_read_again(stalled):
    for _ in range(2):
        with pytest.raises(RefusedError, match="no pod on this node waits") as caught:
            await stalled.allocator.allocate(ids((0, 0)))
        assert caught.value.reason == "NoPendingPod"

    assert stalled.asked == 2


async def test_nothing_is_read_again_for_a_refusal_with_another_reason(stalled):
    stalled.cluster.lagging = False
    stalled.cluster.add(pod("a", pieces=[[grant(1)]]))

    with pytest.raises(RefusedError) as caught:
        await stalled.allocator.allocate(ids((0, 0)))

    assert caught.value.reason != "NoPendingPod"
    assert stalled.asked == 0
    assert uuid(0) in str(caught.value)
