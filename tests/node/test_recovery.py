"""After a restart: which shares of a former life are real?"""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.aio import cancelled
from hami_plugin.node.recovery import Recovery
from hami_plugin.wire.keys import BIND_PHASE, PHASE_SUCCESS
from tests.support.builders import container, grant, held_by, ids, pod
from tests.support.kubelet import kept
from tests.support.node import until

A = pod("a", pieces=[[grant(0)]])
ONE = ids((0, 0))


def share(owner=A, name="main", **changes):
    return held_by(owner, name, ONE, [grant(0)], **changes)


@pytest.fixture
async def recover(node):
    """Journal some shares, start over, and reconcile."""
    tasks, nodes = [], []

    async def run(*shares):
        for held in shares:
            node.ledger.reserve(held)
            node.ledger.write(held)
        again = await node.restart()
        recovery = Recovery(
            ledger=again.ledger,
            pods=again.pods,
            settlement=again.settlement,
            checkpoint=again.checkpoint,
            period=0.002,
        )
        task = asyncio.create_task(recovery.run())
        tasks.append(task)
        nodes.append(again)
        return again, task

    yield run
    for task in tasks:
        await cancelled(task)
    for again in nodes:
        await again.settlement.close()
        again.journal.close()


async def test_nothing_to_reconcile_ends_at_once(recover):
    _, task = await recover()

    await asyncio.wait_for(task, 30)


async def test_a_share_that_its_pod_holds_is_recorded_at_the_pod(node, recover):
    node.cluster.add(A)
    node.checkpoint.list = [kept(A, ONE)]

    again, task = await recover(share())
    await asyncio.wait_for(task, 30)

    assert again.cluster.pod(A).annotations[BIND_PHASE] == PHASE_SUCCESS
    assert again.ledger.held[share().key].settled


async def test_a_share_that_was_never_delivered_stays_reserved_while_its_pod_lives(node, recover):
    a = node.cluster.add(A)
    node.checkpoint.list = [kept(pod("b"), ids((1, 0))), kept(A, ONE, answered=(pod("b"), "main"))]

    again, task = await recover(share())
    await asyncio.sleep(0.02)
    assert not task.done()
    assert set(again.ledger.held) == {share().key}
    assert again.cluster.writes == []

    node.cluster.attach(again.pods, again.live)
    node.cluster.change(a, phase="Failed")
    await asyncio.wait_for(task, 30)
    assert again.ledger.held == {}


async def test_the_kubelets_repeat_gets_the_answer_of_the_former_life(node, recover):
    node.cluster.add(A)
    first = await node.allocator.allocate(ONE)

    again, _ = await recover()

    assert await again.allocator.allocate(ONE) == first


async def test_shares_of_pods_that_ended_meanwhile_are_dropped(node, recover):
    node.cluster.add(replace(A, phase="Succeeded"))

    again, task = await recover(share(), share(pod("gone"), "other"))
    await asyncio.wait_for(task, 30)

    assert again.ledger.held == {}


async def test_a_pod_of_the_same_name_is_not_the_pod(node, recover):
    node.cluster.add(replace(A, uid="another"))

    again, task = await recover(share())
    await asyncio.wait_for(task, 30)

    assert again.ledger.held == {}


async def test_shares_already_recorded_cost_no_call(node, recover):
    node.cluster.add(A)
    node.checkpoint.problem = "nobody may ask"

    again, task = await recover(share(settled=True))
    await asyncio.wait_for(task, 30)

    assert again.cluster.calls == []


async def test_a_kubelet_that_does_not_answer_is_asked_again(node, recover):
    node.cluster.add(A)
    node.checkpoint.list = [kept(A, ONE)]
    node.checkpoint.problem = "connection refused"

    _, task = await recover(share())
    await asyncio.sleep(0.01)
    assert not task.done()
    node.checkpoint.problem = ""

    await asyncio.wait_for(task, 30)


async def test_an_init_containers_share_is_recorded_when_the_checkpoint_has_it(node, recover):
    a = pod("a", [container("init", 1, init=True)], [[grant(0)]])
    node.cluster.add(a)
    node.checkpoint.list = [kept(a, ONE, "init")]

    again, task = await recover(share(a, "init", init=True))
    await asyncio.wait_for(task, 30)

    assert again.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS


async def test_nothing_is_dropped_before_the_first_list_of_pods(node):
    node.ledger.reserve(share())
    node.pods.changes._value = False
    recovery = Recovery(
        ledger=node.ledger, pods=node.pods, settlement=node.settlement, checkpoint=node.checkpoint, period=0.002
    )
    task = asyncio.create_task(recovery.run())
    await asyncio.sleep(0.02)
    assert set(node.ledger.held) == {share().key}

    node.pods.feed.replace([])
    await until(lambda: not node.ledger.held)
    await task
