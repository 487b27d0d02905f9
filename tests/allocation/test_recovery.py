"""After a restart: which shares of a former life are real?"""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.allocation.recovery import Recovery
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.process.concurrency import cancel
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_SUCCESS
from tests.support.builders import (
    ALLOCATED,
    CARD_MIB,
    COUNT,
    TO_ALLOCATE,
    container,
    decision,
    grant,
    held_by,
    ids,
    pod,
    uuid,
)
from tests.support.kubelet import kept
from tests.support.node import Node, until

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
        await cancel(task)
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


@pytest.mark.scenario("A5", "A6")
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


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_share_of_a_pod_that_has_ended_is_dropped_though_its_end_was_told_before(node, recover, phase):
    node.cluster.add(replace(A, phase=phase))
    again, task = await recover()
    again.ledger.reserve(share())

    await asyncio.wait_for(task, 30)

    assert again.ledger.held == {}


@pytest.mark.scenario("A9")
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
    node.pods.changes.value = False
    recovery = Recovery(
        ledger=node.ledger, pods=node.pods, settlement=node.settlement, checkpoint=node.checkpoint, period=0.002
    )
    task = asyncio.create_task(recovery.run())
    await asyncio.sleep(0.02)
    assert set(node.ledger.held) == {share().key}

    node.pods.feed.replace([])
    await until(lambda: not node.ledger.held)
    await task


class Restart:
    """A node whose state directory was taken away while its pods went on."""

    def __init__(self, node, *, keep=False):
        self.former, self.keep = node, keep

    async def __aenter__(self):
        node = self.former
        await node.settlement.close()
        node.journal.close()
        if not self.keep:
            (node.root / "journal").unlink(missing_ok=True)
        node.cluster._table = node.cluster._live = None
        self.recovery = None
        self.node = Node(root=node.root, cluster=node.cluster, checkpoint=node.checkpoint, first=self.first)
        return self

    def first(self):
        if self.recovery:
            self.recovery.restore()

    async def listed(self):
        """The daemon reads the kubelet's account, and then the first list of pods comes."""
        node = self.node
        node.pods.changes.value = False
        self.recovery = Recovery(
            ledger=node.ledger, pods=node.pods, settlement=node.settlement, checkpoint=node.checkpoint, period=0.002
        )
        await self.recovery.ask()
        node.cluster.attach(node.pods, node.live)
        return node

    async def __aexit__(self, *_):
        await self.node.settlement.close()
        self.node.journal.close()


def big(name, card=0, **changes):
    asks = [container(count=1, memory=CARD_MIB)]
    return pod(name, asks, [[grant(card, CARD_MIB)]], **changes)


async def overcommitted(node, replicas):
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(replicas)
    return caught.value.reason


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("theirs", [False, True], ids=["answered by us", "answered by another plugin"])
async def test_what_the_kubelet_keeps_is_held_again_although_the_journal_is_gone(node, phase, theirs):
    a = node.cluster.add(big("a"))
    first = await node.allocator.allocate(ONE)
    kept_one = kept(a, ONE)
    node.checkpoint.list = [replace(kept_one, answered_for="") if theirs else kept_one]
    node.cluster.change(a, phase=phase)
    async with Restart(node) as restart:
        again = await restart.listed()

        assert {h.key: (h.ids, [g.memory for g in h.grants]) for h in again.ledger.held.values()} == {
            ("a-uid", "main", COUNT): (frozenset(ONE), [CARD_MIB])
        }
        again.cluster.add(big("forged"))
        assert await overcommitted(again, ids((0, 1))) is RefusalReason.OVERCOMMITTED
        if phase == "Pending":
            assert await again.allocator.allocate(ONE) == first
        assert restart.recovery.problem == ""


async def test_what_is_held_again_is_on_file_and_settled_at_its_pod(node):
    a = node.cluster.add(big("a"))
    node.cluster.down = True
    await node.allocator.allocate(ONE)
    node.cluster.down = False
    node.checkpoint.list = [kept(a, ONE)]
    async with Restart(node) as restart:
        again = await restart.listed()
        task = asyncio.create_task(restart.recovery.run())
        await asyncio.wait_for(task, 30)

        assert again.cluster.pod(a).annotations[BIND_PHASE] == PHASE_SUCCESS
        again.journal.flush()
        assert len(again.journal.read()) >= 1


async def test_a_container_whose_answer_reached_another_one_or_none_and_a_pod_that_has_ended_hold_nothing_again(node):
    lost_one, never, over = (node.cluster.add(big(name, card)) for card, name in enumerate(("lost", "never", "over")))
    node.cluster.change(over, phase="Succeeded")
    node.checkpoint.list = [kept(lost_one, ONE, answered=(never, "main")), kept(over, ids((2, 0)))]
    async with Restart(node) as restart:
        again = await restart.listed()

        assert again.ledger.held == {}


async def test_a_pod_without_a_decision_or_with_one_that_nobody_can_read_holds_its_devices_whole(node):
    node.cluster.add(pod("s", [container(count=1)], phase="Running"))
    node.cluster.add(
        pod("odd", [container(count=1)], annotations={TO_ALLOCATE: ";", ALLOCATED: "x,y;"}, phase="Running")
    )
    node.checkpoint.list = [kept(pod("s"), ONE), kept(pod("odd"), ids((1, 0)))]
    async with Restart(node) as restart:
        again = await restart.listed()

        found = {h.pod: (h.undecided, [g.uuid for g in h.grants]) for h in again.ledger.held.values()}
        assert found == {"s": (True, [uuid(0)]), "odd": (False, [uuid(1)])}
        again.cluster.add(big("forged", 1))
        assert await overcommitted(again, ids((1, 1))) is RefusalReason.OVERCOMMITTED


async def test_while_nobody_can_read_what_the_kubelet_keeps_annotations_count_and_it_is_told(node):
    a = node.cluster.add(big("a"))
    await node.allocator.allocate(ONE)
    await node.settled()
    node.cluster.change(a, phase="Running")
    node.cluster.add(big("waits", 1))
    node.checkpoint.problem = "not in a known format"
    async with Restart(node) as restart:
        again = await restart.listed()

        assert [(h.pod, h.ids) for h in again.ledger.held.values()] == [("a", frozenset())]
        assert "1 containers hold" in restart.recovery.problem
        assert "not in a known format" in restart.recovery.problem
        again.cluster.add(big("forged"))
        assert await overcommitted(again, ids((0, 1))) is RefusalReason.OVERCOMMITTED

        task = asyncio.create_task(restart.recovery.run())
        again.checkpoint.list, again.checkpoint.problem = [kept(a, ONE)], ""
        await until(lambda: restart.recovery.problem == "")

        assert [(h.pod, h.ids) for h in again.ledger.held.values()] == [("a", frozenset(ONE))]
        await cancel(task)


async def test_what_the_journal_knows_is_not_taken_from_annotations(node):
    """The pod's author can edit them."""
    a = node.cluster.add(big("a"))
    await node.allocator.allocate(ONE)
    await node.settled()
    node.checkpoint.list = [kept(a, ONE)]
    less = decision([[grant(0, 1)]])
    node.cluster.change(a, annotations={**less, TO_ALLOCATE: ";"}, phase="Running")
    async with Restart(node, keep=True) as restart:
        again = await restart.listed()

        assert [g.memory for h in again.ledger.held.values() for g in h.grants] == [CARD_MIB]
