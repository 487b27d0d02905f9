"""Before a container starts: do its devices come with its own limits?"""

from dataclasses import replace

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from tests.support.builders import container, grant, ids, pod
from tests.support.kubelet import holder

A = pod("a", pieces=[[grant(0)]])
B = pod("b", pieces=[[grant(0, 2000)]])
ONE = ids((0, 0))


async def refused(node, replicas=ONE) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.plugin.pre_start(replicas)
    return caught.value


async def handed(node, *pods, replicas=ONE):
    for owner in pods:
        node.cluster.add(owner)
        await node.allocator.allocate(replicas)
    await node.settled()


async def test_the_pod_that_got_the_limits_starts(node):
    await handed(node, A)
    node.resources.list = [holder(A, ONE)]

    await node.plugin.pre_start(ONE)

    assert node.observer.starts == ["ok"]


async def test_no_ids_are_an_invalid_argument(node):
    assert (await refused(node, [])).code == "INVALID_ARGUMENT"


async def test_a_kubelet_that_does_not_answer_is_a_reason_to_wait(node):
    await handed(node, A)
    node.resources.problem = "connection refused"

    refusal = await refused(node)

    assert (refusal.reason, refusal.code) == (RefusalReason.HOLDER_UNKNOWN, "UNAVAILABLE")
    assert "connection refused" in refusal.message
    assert node.observer.starts == ["HolderUnknown"]


async def test_a_kubelet_that_does_not_say_yet_is_a_reason_to_wait(node):
    await handed(node, A)

    assert (await refused(node)).code == "UNAVAILABLE"
    assert len(node.ledger.held) == 1


@pytest.mark.parametrize("outage", [False, True], ids=["recorded", "not recorded yet"])
async def test_limits_that_reached_another_pod_stop_it_at_every_try(node, outage):
    """B asks, but only A is known yet and fits. Later B's own decision shows up and names the same device."""
    node.cluster.add(A)
    node.cluster.down = outage
    await node.allocator.allocate(ONE)
    node.cluster.add(B)
    node.resources.list = [holder(B, ONE)]

    for _ in range(3):
        refusal = await refused(node)
        assert (refusal.reason, refusal.code) == (RefusalReason.WRONG_HOLDER, "FAILED_PRECONDITION")
        node.cluster.down = False
        await node.settled()

    assert ("b", "WrongHolder") in {event[:2] for event in await node.told()}


async def test_limits_that_reached_another_pod_stop_it_after_a_restart_and_after_the_first_pods_end(node):
    a = node.cluster.add(A)
    await node.allocator.allocate(ONE)
    node.cluster.add(B)
    node.resources.list = [holder(B, ONE)]
    await refused(node)

    node = await node.restart()
    node.cluster.remove(a)

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER
    await node.settlement.close()


async def test_limits_of_a_former_pod_of_the_same_name_stop_the_new_one(node):
    a = node.cluster.add(A)
    await node.allocator.allocate(ONE)
    node.resources.list = [holder(A, ONE)]
    await node.settlement.close()
    node.cluster.attach()
    node.cluster.remove(a)
    node.cluster.add(replace(B, name="a", uid="another-uid"))

    node = await node.restart()

    assert "another pod of that name" in (await refused(node)).message


async def test_shares_that_are_not_recorded_yet_can_be_handed_out_to_their_own_pod(node):
    node.cluster.down = True
    node.cluster.add(A)
    await node.allocator.allocate(ONE)
    b = node.cluster.add(B)
    node.resources.list = [holder(B, ONE)]
    await refused(node)
    node.cluster.remove(b)

    await node.allocator.allocate(ids((0, 1)))

    node.resources.list = [holder(A, ids((0, 1)))]
    await node.plugin.pre_start(ids((0, 1)))


async def test_the_same_ids_handed_out_anew_are_judged_anew(node):
    await handed(node, A)
    stranger = node.cluster.add(pod("s", [container(count=1)]))
    node.resources.list = [holder(stranger, ONE)]
    await refused(node)

    node.cluster.remove(stranger)
    c = node.cluster.add(pod("c", pieces=[[grant(0, 3000)]]))
    await node.allocator.allocate(ONE)
    node.resources.list = [holder(c, ONE)]

    await node.plugin.pre_start(ONE)


async def test_limits_of_one_container_stop_another_of_the_same_pod_at_every_try(node):
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0, 1000)], [grant(0, 2000)]])
    await handed(node, a, replicas=ids((0, 0)))
    await node.allocator.allocate(ids((0, 1)))
    node.resources.list = [holder(a, ids((0, 1)), "one"), holder(a, ids((0, 0)), "two")]

    for replicas in (ids((0, 1)), ids((0, 0))) * 2:
        assert (await refused(node, replicas)).reason is RefusalReason.WRONG_HOLDER


async def test_two_holders_of_one_device_stop_each_other(node):
    await handed(node, A)
    node.cluster.add(B)
    node.resources.list = [holder(A, ONE), holder(B, ONE)]

    refusal = await refused(node)

    assert refusal.reason is RefusalReason.WRONG_HOLDER
    assert "default/a, default/b" in refusal.message


async def test_an_init_container_is_not_in_the_kubelets_account_and_starts(node):
    a = pod("a", [container("init", 1, init=True)], [[grant(0)]])
    await handed(node, a)

    await node.plugin.pre_start(ONE)


async def test_an_init_container_starts_while_a_later_container_has_its_ids(node):
    a = pod("a", [container("init", 1, init=True), container("one", 1)], [[grant(0)], [grant(1)]])
    await handed(node, a)
    await node.allocator.allocate(ONE)
    node.resources.list = [holder(a, ONE, "one")]

    await node.plugin.pre_start(ONE)


async def test_an_init_containers_ids_in_another_pod_are_stopped(node):
    a = pod("a", [container("init", 1, init=True)], [[grant(0)]])
    await handed(node, a)
    node.cluster.add(B)
    node.resources.list = [holder(B, ONE)]

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER


async def test_an_init_container_waits_while_another_pod_may_have_been_meant(node):
    a = pod("a", [container("init", 1, init=True)], [[grant(0)]])
    await handed(node, a)
    b = node.cluster.add(pod("b", pieces=[[grant(1)]]))

    refusal = await refused(node)
    assert (refusal.reason, refusal.code) == (RefusalReason.HOLDER_UNKNOWN, "UNAVAILABLE")
    assert "default/b" in refusal.message

    node.cluster.change(b, phase="Failed")
    await node.plugin.pre_start(ONE)


async def test_an_init_container_with_another_pods_limits_is_told_by_that_pods_other_containers(node):
    """Two pods that ask for the same; the later one was admitted first, so each has the other's limits."""
    first, later = (
        pod(name, [container("i", 1, init=True), container("c", 2)], pieces=[[grant(0)], [grant(0), grant(1)]])
        for name in ("first", "later")
    )
    node.cluster.add(first)
    node.cluster.add(later)
    turns = [ids((0, 0)), ids((0, 1), (1, 0))], [ids((0, 2)), ids((0, 3), (1, 1))]
    for init, main in turns:
        await node.allocator.allocate(init)
        await node.allocator.allocate(main)
    node.resources.list = [holder(later, turns[0][1], "c"), holder(first, turns[1][1], "c")]

    refusal = await refused(node, turns[0][0])

    assert refusal.reason is RefusalReason.WRONG_HOLDER
    assert "default/later holds devices of the same pod" in refusal.message


async def test_a_sidecar_with_an_init_containers_limits_is_stopped(node):
    """The kubelet lists the sidecar with ids that only the init container was answered for."""
    a = pod("a", [container("init", 1, init=True), container("side", 1, sidecar=True)], [[grant(0)], [grant(0, 2000)]])
    await handed(node, a)
    node.resources.list = [holder(a, ONE, "side")]

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER


async def test_ids_that_were_handed_out_after_their_former_pods_end_was_missed_are_fine(node):
    await handed(node, A)
    b = pod("b", pieces=[[grant(0)]])
    await handed(node, b)
    node.resources.list = [holder(b, ONE)]

    await node.plugin.pre_start(ONE)


async def test_a_start_after_a_restart_is_judged_by_the_journal(node):
    await handed(node, A)
    node.resources.list = [holder(A, ONE)]
    node = await node.restart()

    await node.plugin.pre_start(ONE)
    node.cluster.add(B)
    node.resources.list = [holder(B, ONE)]

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER
    await node.settlement.close()
