"""Is what was handed out recorded at the pod, with as few calls as it takes, whatever the API server does?"""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.allocation import settlement
from hami_plugin.errors import ClusterError
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from tests.support.builders import ALLOCATED, TO_ALLOCATE, container, grant, held_by, ids, pod, uuid
from tests.support.node import until
from tests.support.sleeping import Sleeping

LOCK = "2026-08-21T10:11:12+08:00,default,a"


def bound(node, name="a", pieces=None, containers=(), lock=True):
    if lock:
        node.cluster.annotate(**{NODE_LOCK: f"2026-08-21T10:11:12+08:00,default,{name}"})
    return node.cluster.add(pod(name, containers, pieces or [[grant(0)]]))


async def test_one_pod_patch_and_one_node_patch_and_no_read(node):
    a = bound(node)

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.calls == [("patch", "pods"), ("patch", "nodes")]
    assert node.cluster.bodies == [{TO_ALLOCATE: ";", BIND_PHASE: PHASE_SUCCESS}, {NODE_LOCK: None}]
    assert node.cluster.pod(a).annotations[ALLOCATED] == f"{uuid(0)},TOY,1000,10:;"
    assert NODE_LOCK not in node.cluster.node.annotations
    assert all(held.settled for held in node.ledger.held.values())


async def test_the_phase_and_the_lock_wait_for_the_last_container(node):
    a = bound(node, pieces=[[grant(0)], [grant(1)]], containers=[container("one", 1), container("two", 1)])

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_ALLOCATING
    assert NODE_LOCK in node.cluster.node.annotations

    await node.allocator.allocate(ids((1, 0)))
    await node.settled()
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS
    assert node.cluster.calls == [("patch", "pods")] * 2 + [("patch", "nodes")]


async def test_containers_handed_out_at_once_are_recorded_together(node):
    bound(node, pieces=[[grant(0)], [grant(1)]], containers=[container("one", 1), container("two", 1)])

    node.settlement._together = 0.5  # longer than both calls take, however slow the machine is
    await node.allocator.allocate(ids((0, 0)))
    await node.allocator.allocate(ids((1, 0)))
    await node.settled()

    assert node.cluster.calls == [("patch", "pods"), ("patch", "nodes")]


async def served_in_each_pause(node, monkeypatch, containers):
    """A kubelet asks for another container of the pod whenever a while has passed."""
    names = [f"c{number}" for number in range(containers)]
    pieces = [[grant(number % 4)] for number in range(containers)]
    bound(node, pieces=pieces, containers=[container(name, 1) for name in names])
    left = [ids((number % 4, number // 4)) for number in range(1, containers)]

    async def sleep(_seconds):
        await (node.allocator.allocate(left.pop(0)) if left else asyncio.sleep(0))

    monkeypatch.setattr(settlement, "asyncio", Sleeping(sleep))
    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: node.settlement.idle)
    while left:
        await node.allocator.allocate(left.pop(0))
        await until(lambda: node.settlement.idle)


async def test_containers_that_the_kubelet_asks_for_one_after_the_other_are_recorded_together(node, monkeypatch):
    await served_in_each_pause(node, monkeypatch, containers=4)

    assert node.cluster.calls == [("patch", "pods"), ("patch", "nodes")]


async def test_a_pod_of_many_containers_is_recorded_before_the_last_is_served(node, monkeypatch):
    await served_in_each_pause(node, monkeypatch, containers=12)

    assert BIND_PHASE not in node.cluster.bodies[0]
    assert node.cluster.calls == [("patch", "pods")] * 2 + [("patch", "nodes")]


async def test_a_container_handed_out_while_a_patch_is_under_way_is_recorded_after_it(node):
    a = bound(node, pieces=[[grant(0)], [grant(1)]], containers=[container("one", 1), container("two", 1)])
    node.cluster.latency = 0.02
    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: node.cluster.calls)

    await node.allocator.allocate(ids((1, 0)))
    await node.settled()

    assert node.cluster.pod(a).annotations[TO_ALLOCATE] == ";;"
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_what_is_handed_out_at_the_moment_in_which_a_task_ends_is_not_lost(node):
    a = bound(node, pieces=[[grant(0)], [grant(1)]], containers=[container("one", 1), container("two", 1)])
    converge = node.settlement._converge

    def hand_out():
        node.ledger.reserve(held_by(a, "two", ids((1, 0))))
        node.settlement.note(a.uid)

    async def and_then(uid):
        await converge(uid)
        node.settlement._converge = converge
        asyncio.get_running_loop().call_soon(hand_out)  # runs before anybody is told that the task has ended

    node.settlement._converge = and_then
    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: len(node.ledger.held) == 2)
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_an_api_server_that_is_away_is_awaited(node):
    a = bound(node)
    node.cluster.down = True
    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: len(node.cluster.calls) > 3)
    assert not node.settlement.idle
    assert not any(held.settled for held in node.ledger.held.values())

    node.cluster.down = False
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS
    assert NODE_LOCK not in node.cluster.node.annotations


async def test_a_lock_release_that_fails_is_retried_without_patching_the_pod_again(node):
    bound(node)
    node.cluster.fail("patch nodes", ClusterError("gone for a moment", status=503))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.calls == [("patch", "pods"), ("patch", "nodes"), ("patch", "nodes")]
    assert NODE_LOCK not in node.cluster.node.annotations


async def test_the_wait_that_the_server_asks_for_is_kept(node, monkeypatch):
    bound(node)
    node.cluster.fail("patch pods", ClusterError("too many requests", status=429, retry_after=90.0))
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0 if seconds == 90.0 else seconds)

    monkeypatch.setattr(settlement, "asyncio", Sleeping(sleep))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert waits.count(90.0) == 1
    assert len(node.cluster.writes) == 3


async def test_a_conflict_at_the_lock_is_looked_at_again(node):
    bound(node)
    node.cluster.lagging = True
    node.cluster.before("patch nodes", lambda: node.cluster.annotate(somebody="else"))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.calls == [("patch", "pods"), ("patch", "nodes"), ("get", "nodes"), ("patch", "nodes")]
    assert node.cluster.node.annotations == {"somebody": "else"}


@pytest.mark.scenario("A14")
async def test_a_lock_that_passed_to_another_pod_is_left_alone(node):
    bound(node)
    node.cluster.lagging = True
    passed_on = {NODE_LOCK: "2026-08-21T10:11:13Z,default,b"}
    node.cluster.before("patch nodes", lambda: node.cluster.annotate(**passed_on))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.node.annotations == passed_on


async def test_a_lock_that_the_watch_has_not_shown_yet_is_found_with_one_read(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.lagging = True
    node.cluster.annotate(**{NODE_LOCK: LOCK})

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.calls == [("patch", "pods"), ("get", "nodes"), ("patch", "nodes")]
    assert NODE_LOCK not in node.cluster.node.annotations


@pytest.mark.scenario("A6")
async def test_a_repeated_call_writes_nothing_and_reads_nothing(node):
    bound(node, lock=False)
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    calls = len(node.cluster.calls)

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert len(node.cluster.calls) == calls


async def test_a_pod_without_a_decision_is_not_written_to(node):
    node.decide(serve_unannotated=True)
    node.cluster.add(pod("s", [container(count=1)]))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.calls == []
    assert all(held.settled for held in node.ledger.held.values())


async def test_a_pod_that_is_deleted_meanwhile_is_given_up(node):
    a = bound(node)
    node.cluster.before("patch pods", lambda: node.cluster.remove(a))

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.pods.pods == ()
    assert node.ledger.held == {}


async def test_the_answer_to_a_patch_does_not_bring_a_deleted_pod_back(node):
    a = bound(node)
    patch = node.cluster.patch_pod

    async def answered_late(view, annotations):
        answer = await patch(view, annotations)
        node.cluster.remove(a)
        return answer

    node.cluster.patch_pod = answered_late
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.pods.pods == ()


@pytest.mark.scenario("A9")
async def test_a_pod_recreated_under_the_same_name_is_never_written_to(node):
    a = bound(node)
    again = replace(pod("a", pieces=[[grant(1)]]), uid="another-uid")
    node.cluster.lagging = True
    await node.allocator.allocate(ids((0, 0)))
    node.cluster.remove(a)
    again = node.cluster.add(again)
    await until(lambda: len(node.cluster.calls) > 2)

    node.cluster.catch_up()
    await node.settled()

    assert node.cluster.pod(again).annotations == again.annotations
    assert node.cluster.bodies == []


async def test_a_failure_is_written_once_and_frees_the_lock(node):
    a = bound(node)

    node.settlement.fail(a)
    await node.settled()
    node.settlement.fail(a)
    await node.settled()

    assert node.cluster.bodies == [{BIND_PHASE: PHASE_FAILED}, {NODE_LOCK: None}]


async def test_a_failure_frees_the_lock_although_the_kubelet_ends_the_pod_at_once(node):
    a = bound(node)

    node.settlement.fail(a)
    node.cluster.change(a, phase="Failed")
    await node.settled()

    assert NODE_LOCK not in node.cluster.node.annotations


async def test_a_restart_finishes_what_was_not_recorded(node):
    bound(node)
    node.cluster.down = True
    await node.allocator.allocate(ids((0, 0)))
    await until(lambda: node.cluster.calls)
    node = await node.restart()
    node.cluster.down = False

    node.settlement.note("a-uid")
    await node.settled()

    assert node.cluster.bodies == [{TO_ALLOCATE: ";", BIND_PHASE: PHASE_SUCCESS}, {NODE_LOCK: None}]


@pytest.mark.parametrize("status", [403, 409, 422, 500])
async def test_no_refusal_of_the_server_ends_the_trying_while_the_pod_is_there(node, status):
    a = bound(node)
    node.cluster.fail("patch pods", *[ClusterError("no", status=status)] * 3)

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_a_decision_that_failed_beside_a_share_that_was_handed_out_is_told_as_failed(node):
    """Its pod is over. ``success`` would leave the scheduler with a pod that it takes to be served."""
    a = bound(node, pieces=[[grant(0)], [grant(1)]], containers=[container("one", 1), container("two", 1)])
    node.cluster.down = True
    await node.allocator.allocate(ids((0, 0)))
    node.settlement.fail(a)
    node.cluster.down = False

    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    assert NODE_LOCK not in node.cluster.node.annotations


async def test_a_pod_that_was_served_whole_stays_a_success_though_one_of_its_containers_fails_later(node):
    a = bound(node)
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    node.settlement.fail(a)
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_a_pod_that_says_success_already_is_not_told_to_have_failed(node):
    """An earlier daemon said so: its scheduler counts on it."""
    a = bound(node)
    node.cluster.change(a, annotations={**a.annotations, BIND_PHASE: PHASE_SUCCESS})

    node.settlement.fail(a)
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_a_pod_that_has_all_it_was_decided_is_told_so_although_one_of_its_starts_is_refused_meanwhile(node):
    a = bound(node)
    node.cluster.down = True
    await node.allocator.allocate(ids((0, 0)))
    node.settlement.fail(a)
    node.cluster.down = False

    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


@pytest.mark.scenario("A6")
async def test_a_repeated_call_records_what_the_first_one_could_not(node):
    """The record of the first call was given up with the pod's absence; the pod is there again, and so is the call."""
    a = bound(node)
    node.cluster.fail("patch pods", ClusterError("not found, says a server that lags", status=404))
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_ALLOCATING

    await node.allocator.allocate(ids((0, 0)))
    await node.settled()

    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


@pytest.mark.parametrize("way", ["deleted meanwhile", "failed meanwhile", "failed before", "unknown"])
async def test_nothing_is_kept_of_a_pod_that_is_gone(node, way):
    a = bound(node, lock=False)
    node.cluster.latency = 0.002
    match way:
        case "deleted meanwhile":
            await node.allocator.allocate(ids((0, 0)))
            await until(lambda: node.cluster.calls)
            node.cluster.remove(a)
        case "failed meanwhile":
            node.settlement.fail(a)
            await until(lambda: node.cluster.calls)
            node.cluster.change(a, phase="Failed")
        case "failed before":
            node.settlement.fail(a)
            await node.settled()
            node.cluster.remove(a)
        case "unknown":
            node.settlement.fail(pod("somebody"))
    await node.settled()

    of_pods = (node.settlement.failed, node.settlement._unlocked, node.settlement._again, node.settlement._tasks)
    assert [len(one) for one in of_pods] == [0, 0, 0, 0]
