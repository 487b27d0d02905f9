"""Before a container starts, at a daemon that has lost its journal: does the pod's own decision allow it?"""

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from tests.support.builders import ALLOCATED, TO_ALLOCATE, container, grant, ids, pod
from tests.support.kubelet import holder

A = pod("a", pieces=[[grant(0)]])
ONE = ids((0, 0))


async def refused(node, replicas=ONE) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.plugin.pre_start(replicas)
    return caught.value


async def test_the_pods_own_decision_counts(node):
    node.cluster.add(A)
    node.resources.list = [holder(A, ONE)]

    await node.plugin.pre_start(ONE)


async def test_a_decision_that_names_other_devices_stops_the_pod(node):
    node.cluster.add(A)
    node.resources.list = [holder(A, ids((1, 0)))]

    assert (await refused(node, ids((1, 0)))).reason is RefusalReason.WRONG_HOLDER


async def test_another_containers_share_does_not_count(node):
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
    node.cluster.add(a)
    node.resources.list = [holder(a, ids((1, 0)), "one")]

    assert (await refused(node, ids((1, 0)))).reason is RefusalReason.WRONG_HOLDER


async def test_an_init_containers_devices_may_be_a_later_containers(node):
    a = pod("a", [container("init", 1, init=True), container("one", 1)], [[grant(0)], [grant(1)]])
    node.cluster.add(a)
    node.resources.list = [holder(a, ONE, "one")]

    await node.plugin.pre_start(ONE)


async def test_an_unreadable_decision_stops_the_pod(node):
    a = node.cluster.add(pod("a", [container(count=1)], annotations={TO_ALLOCATE: ";", ALLOCATED: "x,y;"}))
    node.resources.list = [holder(a, ONE)]

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER


async def test_a_pod_without_a_decision_has_what_the_kubelet_gave(node):
    a = node.cluster.add(pod("a", [container(count=1)]))
    node.resources.list = [holder(a, ONE)]

    await node.plugin.pre_start(ONE)


@pytest.mark.parametrize("known", [False, True], ids=["no pod", "no holder"])
async def test_nobody_known_is_a_reason_to_wait(node, known):
    if known:
        node.cluster.add(A)
    else:
        node.resources.list = [holder(A, ONE)]

    assert (await refused(node)).code == "UNAVAILABLE"
