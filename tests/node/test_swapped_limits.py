"""Limits that reached a container before their own: found at the start, for all that came after them."""

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from tests.support.builders import container, grant, ids, pod
from tests.support.kubelet import holder

FIRST, SECOND = ids((0, 0)), ids((1, 0))
OTHER = pod("other", [container(count=1)], phase="Running")


async def refused(node, replicas) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.plugin.pre_start(replicas)
    return caught.value


async def hand_out(node, owner):
    """Both shares of a pod of two containers, in order."""
    node.cluster.add(owner)
    await node.allocator.allocate(FIRST)
    await node.allocator.allocate(SECOND)


def two(**kind):
    containers = [container("c0", 1, **kind), container("c1", 1, **kind)]
    return pod("victim", containers, pieces=[[grant(0)], [grant(1, 2000)]])


async def test_init_containers_that_start_in_turn_have_their_own_limits(node):
    await hand_out(node, two(init=True))

    await node.plugin.pre_start(FIRST)
    await node.plugin.pre_start(FIRST)
    await node.plugin.pre_start(SECOND)

    assert node.observer.starts == ["ok", "ok", "ok"]


async def test_a_later_init_containers_limits_are_not_used_before_the_earlier_one_has_started(node):
    await hand_out(node, two(init=True))

    refusal = await refused(node, SECOND)

    assert refusal.reason is RefusalReason.WRONG_HOLDER
    assert "before container c0 has started" in refusal.message


async def test_what_a_former_life_of_the_daemon_started_counts_as_started(node):
    await hand_out(node, two(init=True))
    after = await node.restart()

    await after.plugin.pre_start(SECOND)

    assert after.observer.starts == ["ok"]


async def test_a_share_that_another_pod_got_takes_all_later_shares_of_its_pod_with_it(node):
    victim = two()
    await hand_out(node, victim)
    node.cluster.add(OTHER)
    node.resources.list = [holder(OTHER, FIRST), holder(victim, SECOND, "c0")]

    assert (await refused(node, FIRST)).reason is RefusalReason.WRONG_HOLDER
    assert (await refused(node, SECOND)).reason is RefusalReason.WRONG_HOLDER

    assert node.ledger.held == {}
    assert node.settlement.failed(victim.uid)


async def test_a_last_share_that_another_pod_got_is_handed_out_again(node):
    victim = pod("victim", pieces=[[grant(0)]])
    node.cluster.add(victim)
    node.cluster.add(OTHER)
    await node.allocator.allocate(FIRST)
    node.resources.list = [holder(OTHER, FIRST)]
    assert (await refused(node, FIRST)).reason is RefusalReason.WRONG_HOLDER

    again = ids((0, 1))
    await node.allocator.allocate(again)
    node.resources.list = [holder(victim, again)]

    await node.plugin.pre_start(again)


async def test_ids_that_were_not_handed_out_to_a_pod_on_record_are_not_its_own(node):
    owner = pod("owner", pieces=[[grant(0)]])
    node.cluster.add(owner)
    await node.allocator.allocate(FIRST)
    strange = ids((0, 2))
    node.resources.list = [holder(owner, strange)]

    assert (await refused(node, strange)).reason is RefusalReason.WRONG_HOLDER


@pytest.mark.parametrize(("kind", "told_apart"), [({"init": True}, False), ({}, True), ({"sidecar": True}, True)])
async def test_pods_are_told_apart_by_devices_only_where_a_later_check_can_tell(kind, told_apart, node):
    for number in (0, 1):
        share = grant(number, 1000 * (number + 1))
        node.cluster.add(pod(f"p{number}", [container(count=1, **kind)], pieces=[[share]]))

    if told_apart:
        assert (await node.allocator.allocate(SECOND)).edits.env["POD"] == "p1-uid"
    else:
        with pytest.raises(RefusedError) as caught:
            await node.allocator.allocate(SECOND)
        assert caught.value.reason is RefusalReason.AMBIGUOUS
