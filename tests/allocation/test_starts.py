"""Before a container starts: was the answer that the kubelet keeps for it made for it?"""

import random
from dataclasses import replace

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.sdk import Leftovers
from tests.support.builders import ALLOCATED, FAMILY, TO_ALLOCATE, changed, container, grant, ids, pod
from tests.support.kubelet import kept

A = pod("a", pieces=[[grant(0)]])
B = pod("b", pieces=[[grant(0, 2000)]])
ONE, TWO = ids((0, 0)), ids((1, 0))
LEFT = changed(
    FAMILY, leftovers=lambda uid, name, paths: Leftovers(directory=paths.hook / f"{uid}_{name}", suffix=".cache")
)
KINDS = pytest.mark.parametrize("kind", [{}, {"init": True}, {"sidecar": True}], ids=["main", "init", "sidecar"])


async def refused(node, replicas=ONE) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.pre_start(replicas)
    return caught.value


@KINDS
async def test_a_container_starts_with_its_own_answer_before_and_after_a_restart(node, kind):
    a = node.cluster.add(pod("a", [container(count=1, **kind)], [[grant(0)]]))
    kubelet = node.kubelet()
    await kubelet.admit(a)
    await kubelet.start(a)
    again = await node.restart()

    await again.allocator.pre_start(kubelet.given[a.uid, "main"])

    assert (node.observer.starts, again.observer.starts) == (["ok"], ["ok"])


def left_behind(node, owner, container="main"):
    """A file of a container's former start."""
    file = node.host.paths.hook / f"{owner.uid}_{container}" / "region.cache"
    file.parent.mkdir(parents=True)
    file.touch()
    return file


async def test_only_what_the_starting_container_left_is_removed(node):
    node.use(LEFT)
    a, b = node.cluster.add(A), node.cluster.add(B)
    mine, others = left_behind(node, a), left_behind(node, b)
    node.checkpoint.list = [kept(a, ONE), kept(b, TWO)]

    await node.allocator.pre_start(ONE)

    assert not mine.exists()
    assert others.exists()


async def test_nothing_is_removed_while_two_pods_seem_to_have_the_same_ids_since_one_of_them_may_run(node):
    node.use(LEFT)
    a, b = node.cluster.add(A), node.cluster.add(B)
    files = [left_behind(node, a), left_behind(node, b)]
    node.checkpoint.list = [kept(a, ONE), kept(b, ONE)]

    refusal = await refused(node)

    assert (refusal.reason, refusal.code) == (RefusalReason.HOLDER_UNKNOWN, "UNAVAILABLE")
    assert "default/a and container main of pod default/b" in refusal.message
    assert all(file.exists() for file in files)


async def test_nothing_is_removed_for_a_container_that_may_not_start(node):
    node.use(LEFT)
    a, b = node.cluster.add(A), node.cluster.add(B)
    file = left_behind(node, a)
    node.checkpoint.list = [kept(a, ONE, answered=(b, "main"))]

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER
    assert file.exists()


async def test_no_ids_are_an_invalid_argument(node):
    assert (await refused(node, [])).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("problem", ["", "no such file"], ids=["not in it", "not readable"])
async def test_a_checkpoint_that_does_not_tell_is_a_reason_to_wait(node, problem):
    node.cluster.add(A)
    await node.allocator.allocate(ONE)
    node.checkpoint.problem = problem

    refusal = await refused(node)

    assert (refusal.reason, refusal.code) == (RefusalReason.HOLDER_UNKNOWN, "UNAVAILABLE")
    assert problem in refusal.message
    assert len(node.ledger.held) == 1
    assert node.observer.starts == ["HolderUnknown"]


@KINDS
@pytest.mark.parametrize("fate", ["waits", "marked", "gone"])
async def test_an_answer_for_another_pod_stops_a_container_at_every_try(node, kind, fate):
    """B is admitted first, and only A is known then. B may be deleted while it starts."""
    first, later = (
        pod(name, [container(count=1, **kind)], pieces=[[grant(0, memory)]])
        for name, memory in (("first", 1000), ("later", 2000))
    )
    node.cluster.down = True  # so that nothing is recorded yet
    node.cluster.add(first)
    await node.kubelet().admit(later)
    later = node.cluster.add(later)
    match fate:
        case "marked":
            node.cluster.change(later, deleted=True)
        case "gone":
            node.cluster.remove(later)

    for given in ("container main of pod default/first", "first-uid/main"):
        refusal = await refused(node, next(iter(node.checkpoint.list)).ids)
        assert (refusal.reason, refusal.code) == (RefusalReason.WRONG_HOLDER, "FAILED_PRECONDITION")
        owner = "the pod with UID later-uid" if fate == "gone" else "pod default/later"
        assert f"container main of {owner} would start with what was answered for {given}" in refusal.message
    node.cluster.down = False
    assert (("later", "WrongHolder") in {event[:2] for event in await node.told()}) is (fate != "gone")
    await node.settled()


async def test_what_another_pod_had_instead_is_handed_out_to_its_own_pod_and_the_other_asks_for_nothing_more(node):
    node.cluster.down = True  # so that nothing is recorded yet
    node.cluster.add(A)
    await node.allocator.allocate(ONE)
    b = node.cluster.add(B)
    node.checkpoint.list = [kept(b, ONE, answered=(A, "main"))]
    await refused(node)

    again = ids((0, 1))
    assert (await node.allocator.allocate(again)).edits.env["POD"] == "a-uid"
    node.checkpoint.list = [kept(A, again)]
    await node.allocator.pre_start(again)

    assert b.uid in node.settlement.failed
    node.cluster.down = False
    await node.settled()


async def test_an_exchange_is_found_after_a_restart_that_lost_the_journal_and_after_the_pods_end(node):
    a = node.cluster.add(A)
    b = node.cluster.add(B)
    node.checkpoint.list = [kept(b, ONE, answered=(A, "main"))]
    node = await node.restart()
    node.cluster.remove(a)

    assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER
    await node.settlement.close()


@pytest.mark.scenario("A9")
async def test_an_answer_for_a_former_pod_of_the_same_name_stops_the_new_one(node):
    b = node.cluster.add(replace(B, name="a", uid="another-uid"))
    node.checkpoint.list = [kept(b, ONE, answered=(A, "main"))]

    assert "answered for a-uid/main" in (await refused(node)).message


async def test_answers_for_each_others_containers_stop_both(node):
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0, 1000)], [grant(0, 2000)]])
    node.cluster.add(a)
    here, there = ids((0, 0)), ids((0, 1))
    node.checkpoint.list = [kept(a, here, "one", answered=(a, "two")), kept(a, there, "two", answered=(a, "one"))]

    for replicas in (here, there) * 2:
        assert (await refused(node, replicas)).reason is RefusalReason.WRONG_HOLDER


async def test_a_share_that_another_pod_got_takes_all_later_shares_of_its_pod_with_it(node):
    node.cluster.down = True  # so that nothing is recorded yet
    victim = node.cluster.add(pod("victim", [container("c0", 1), container("c1", 1)], [[grant(0)], [grant(1, 2000)]]))
    await node.allocator.allocate(ONE)
    await node.allocator.allocate(TWO)
    node.checkpoint.list = [kept(A, ONE, answered=(victim, "c0")), kept(victim, TWO, "c0", answered=(victim, "c1"))]

    assert (await refused(node, ONE)).reason is RefusalReason.WRONG_HOLDER
    assert node.ledger.held == {}  # before anybody asks for the second
    assert victim.uid in node.settlement.failed

    assert (await refused(node, TWO)).reason is RefusalReason.WRONG_HOLDER


async def test_a_share_before_the_lost_one_and_another_pods_stay(node):
    node.cluster.down = True
    asks = [container(name, 1) for name in ("c0", "c1", "c2")]
    victim = node.cluster.add(pod("victim", asks, [[grant(0)], [grant(1)], [grant(2)]]))
    for number in range(3):
        await node.allocator.allocate(ids((number, 0)))
    node.checkpoint.list = [kept(A, TWO, answered=(victim, "c1"))]

    await refused(node, TWO)

    assert {held.container for held in node.ledger.held.values()} == {"c0"}


async def test_a_container_whose_ids_are_some_of_those_asked_about_is_not_the_one_that_starts(node):
    """The kubelet asks with all ids of a container. What has one of them more or less is another container."""
    node.cluster.add(A)
    node.checkpoint.list = [kept(A, [*ONE, *TWO])]

    assert (await refused(node, ONE)).reason is RefusalReason.HOLDER_UNKNOWN
    node.checkpoint.list = [kept(A, ONE)]
    assert (await refused(node, [*ONE, *TWO])).reason is RefusalReason.HOLDER_UNKNOWN


@pytest.mark.scenario("A10")
async def test_an_init_containers_ids_pass_on_with_an_answer_for_each(node):
    a = node.cluster.add(pod("a", [container("i", 1, init=True), container("c", 1)], [[grant(0)], [grant(1)]]))
    kubelet = node.kubelet()
    await kubelet.admit(a)

    await kubelet.start(a)

    assert [one.ids for one in node.checkpoint.list] == [frozenset(ONE)] * 2
    node.checkpoint.list[0] = kept(a, ONE, "i", answered=(a, "c"))
    assert "container i of pod default/a would start with" in (await refused(node)).message


async def test_an_admission_that_failed_halfway_costs_the_pod_after_it_nothing(node):
    """Pods alike, of which one is deleted while the kubelet admits it, before anybody here knew of it.

    The ledger is told that ``second`` has got an answer for its init container. That answer went to ``first``, and the
    kubelet has dropped it: what it asks for next is the same container's once more.
    """
    asks = [container("i", 1, init=True), container("c", 1)]
    second = node.cluster.add(pod("second", asks, [[grant(0, 1000)], [grant(0, 2000)]]))
    await node.allocator.allocate(ONE)
    kubelet = node.kubelet(choose=random.Random(0))

    edits = await kubelet.admit(second)
    await kubelet.start(second)

    assert {name: answer.edits.env["LIMIT_0"] for name, answer in edits.items()} == {"i": "1000m,10", "c": "2000m,10"}


@KINDS
async def test_pods_that_wait_together_are_told_apart_by_their_devices(kind, node):
    for number in (0, 1):
        share = grant(number, 1000 * (number + 1))
        node.cluster.add(pod(f"p{number}", [container(count=1, **kind)], pieces=[[share]]))

    assert (await node.allocator.allocate(TWO)).edits.env["POD"] == "p1-uid"


class TestAnswersOfAnotherPlugin:
    """They say nothing about whom they were made for: a node that ran another plugin before."""

    @staticmethod
    def theirs(owner, replicas, name="main"):
        return replace(kept(owner, replicas, name), answered_for="")

    async def test_count_where_the_pods_own_decision_names_the_devices(self, node):
        node.cluster.add(A)
        node.checkpoint.list = [self.theirs(A, ONE)]

        await node.allocator.pre_start(ONE)

    async def test_stop_a_container_where_the_decision_names_others(self, node):
        node.cluster.add(A)
        node.checkpoint.list = [self.theirs(A, TWO)]

        assert (await refused(node, TWO)).reason is RefusalReason.WRONG_HOLDER

    async def test_do_not_count_for_another_containers_share(self, node):
        a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
        node.cluster.add(a)
        node.checkpoint.list = [self.theirs(a, TWO, "one")]

        assert (await refused(node, TWO)).reason is RefusalReason.WRONG_HOLDER

    async def test_count_with_an_init_containers_devices_that_passed_on(self, node):
        a = pod("a", [container("init", 1, init=True), container("one", 1)], [[grant(0)], [grant(1)]])
        node.cluster.add(a)
        node.checkpoint.list = [self.theirs(a, ONE, "init"), self.theirs(a, ONE, "one")]

        await node.allocator.pre_start(ONE)

    async def test_stop_a_pod_whose_decision_is_unreadable(self, node):
        a = node.cluster.add(pod("a", [container(count=1)], annotations={TO_ALLOCATE: ";", ALLOCATED: "x,y;"}))
        node.checkpoint.list = [self.theirs(a, ONE)]

        assert (await refused(node)).reason is RefusalReason.WRONG_HOLDER

    async def test_count_for_a_pod_without_a_decision(self, node):
        a = node.cluster.add(pod("a", [container(count=1)]))
        node.checkpoint.list = [self.theirs(a, ONE)]

        await node.allocator.pre_start(ONE)

    async def test_wait_for_a_pod_that_is_not_known_yet(self, node):
        node.checkpoint.list = [self.theirs(A, ONE)]

        assert (await refused(node)).code == "UNAVAILABLE"
