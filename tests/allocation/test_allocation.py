"""What does Allocate hand out, and what does it say when it must not?"""

import asyncio
import random
import threading

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.device import Health
from hami_plugin.process.concurrency import cancel
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_FAILED
from tests.support.builders import (
    FAMILY,
    changed,
    container,
    grant,
    ids,
    pod,
    snapshot,
    uuid,
)
from tests.support.kubelet import kept
from tests.support.node import until


async def refused(node, replicas) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(replicas)
    return caught.value


async def test_the_container_gets_the_limits_that_the_scheduler_wrote(node):
    node.cluster.add(pod("a", pieces=[[grant(2, 3000, 30)]]))

    edits = (await node.allocator.allocate(ids((2, 1)))).edits

    assert edits.env == {"POD": "a-uid", "CONTAINER": "main", "DEVICES": uuid(2), "LIMIT_0": "3000m,30"}
    assert (node.root / "hook/containers/a-uid_main").stat().st_mode & 0o777 == 0o777
    assert node.observer.allocations == ["ok"]


async def test_limits_follow_the_order_in_which_the_container_sees_the_devices(node):
    node.cluster.add(pod("a", pieces=[[grant(3, 3000), grant(1, 1000)]]))

    edits = (await node.allocator.allocate(ids((3, 0), (1, 0)))).edits

    assert edits.env["DEVICES"] == f"{uuid(1)},{uuid(3)}"
    assert (edits.env["LIMIT_0"], edits.env["LIMIT_1"]) == ("1000m,10", "3000m,10")


async def test_the_reply_waits_for_no_api_call(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.latency = 3600.0

    async with asyncio.timeout(30):
        assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "a-uid"


async def test_the_journal_is_written_before_the_reply(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    await node.allocator.allocate(ids((0, 0)))

    assert [entry["uid"] for entry in node.journal.read()] == ["a-uid"]


@pytest.mark.scenario("A6")
async def test_a_repeated_call_gets_the_same_answer_and_takes_nothing_more(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    first = await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    second = await node.allocator.allocate(ids((0, 0)))

    assert second == first
    assert len(node.ledger.held) == 1


@pytest.fixture
def held_back(node, monkeypatch):
    """A disk that takes nothing until it is let go."""
    go, append = threading.Event(), node.journal._journal.append

    def slow(entry, whole=None):
        assert go.wait(30)
        return append(entry, whole)

    monkeypatch.setattr(node.journal._journal, "append", slow)
    yield go
    go.set()


@pytest.mark.scenario("A6")
async def test_neither_a_call_nor_its_repeat_is_answered_before_the_disk_has_the_entry(node, held_back):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    calls = [asyncio.create_task(node.allocator.allocate(ids((0, 0)))) for _ in range(2)]
    await until(lambda: node.ledger.held)
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in calls)

    held_back.set()

    first, second = await asyncio.gather(*calls)
    assert first == second


@pytest.mark.scenario("A7")
async def test_a_call_that_is_given_up_while_the_disk_hangs_holds_nothing_and_the_next_one_is_served(node, held_back):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    call = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await until(lambda: node.ledger.held)

    await cancel(call)
    assert node.ledger.held == {}
    held_back.set()

    assert (await node.allocator.allocate(ids((0, 1)))).edits.env["POD"] == "a-uid"
    again = await node.restart()
    assert [held.ids for held in again.ledger.held.values()] == [frozenset(ids((0, 1)))]
    await again.settlement.close()
    again.journal.close()


async def test_a_repeat_that_is_given_up_while_the_disk_hangs_leaves_the_first_call_its_share(node, held_back):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    first = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await until(lambda: node.ledger.held)
    repeat = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await asyncio.sleep(0.02)

    await cancel(repeat)
    held_back.set()

    assert (await first).edits.env["POD"] == "a-uid"
    assert [held.ids for held in node.ledger.held.values()] == [frozenset(ids((0, 0)))]


async def test_a_disk_that_hangs_holds_up_whoever_needs_it_and_nothing_else(node, held_back):
    node.journal._deadline = 0.05
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    turns = 0

    async def turning():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(turning())
    refusal = await refused(node, ids((0, 0)))
    await cancel(beside)

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "has not taken" in refusal.message
    assert node.ledger.held == {}
    assert turns > 3  # a loop that was held up would have turned once


INIT_PODS = pytest.mark.parametrize("inits", [1, 2])


@INIT_PODS
@pytest.mark.scenario("A6", "A10")
async def test_an_init_containers_call_is_repeated_until_the_kubelet_has_the_answer_and_then_it_is_the_next_ones(
    node, inits
):
    names = [f"i{n}" for n in range(inits)] + ["c"]
    asks = [container(name, 1, init=name != "c") for name in names]
    a = node.cluster.add(pod("a", asks, [[grant(0, 1000 * (n + 1))] for n in range(len(names))]))

    for name in names:
        answers = [await node.allocator.allocate(ids((0, 0))) for _ in range(3)]

        assert [answer.edits.env["CONTAINER"] for answer in answers] == [name] * 3
        assert answers[0] == answers[1] == answers[2]
        node.checkpoint.list.append(kept(a, ids((0, 0)), name))


@pytest.mark.scenario("A6")
async def test_a_kubelet_that_lost_all_answers_of_a_pod_gets_them_again_in_order(node):
    asks = [container("i", 1, init=True), container("c", 1)]
    a = node.cluster.add(pod("a", asks, [[grant(0, 1000)], [grant(0, 2000)]]))
    first = await node.kubelet().admit(a)
    node.checkpoint.list.clear()

    again = []
    for name in ("i", "c"):
        again.append(await node.allocator.allocate(ids((0, 0))))
        node.checkpoint.list.append(kept(a, ids((0, 0)), name))

    assert again == [first["i"], first["c"]]


@pytest.mark.scenario("A6")
async def test_where_nobody_can_tell_what_the_kubelet_has_an_init_containers_ids_are_the_next_ones(node):
    asks = [container("i", 1, init=True), container("c", 1)]
    node.cluster.add(pod("a", asks, [[grant(0, 1000)], [grant(0, 2000)]]))
    node.checkpoint.problem = "no such file"

    answers = [await node.allocator.allocate(ids((0, 0))) for _ in range(2)]

    assert [answer.edits.env["CONTAINER"] for answer in answers] == ["i", "c"]


async def test_a_repeat_for_a_pod_that_runs_already_is_refused(node):
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    node.cluster.change(a, phase="Running")

    assert (await refused(node, ids((0, 0)))).reason is RefusalReason.NO_PENDING_POD


@pytest.mark.parametrize(
    "replicas",
    [
        [],
        ids((0, 0), (0, 0)),
        ids((9, 0)),
        ids((0, 99)),
        [uuid(0)],
        ["x" * 1_000_000],
        ["\x00"],
        [f"{uuid(0)}-{'9' * 9999}"],
        ["a"] * 5000,
    ],
    ids=["none", "twice", "other device", "other share", "no share", "long", "NUL", "long number", "too many"],
)
@pytest.mark.scenario("A2")
async def test_ids_that_were_never_offered_are_an_invalid_argument(node, replicas):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, replicas)

    assert refusal.code == "INVALID_ARGUMENT"
    assert len(str(refusal)) < 500
    assert (node.ledger.held, node.cluster.writes) == ({}, [])


async def test_nobody_waiting_is_said_with_what_the_kubelet_offered(node):
    refusal = await refused(node, ids((1, 0)))

    assert (refusal.reason, refusal.code) == (RefusalReason.NO_PENDING_POD, "FAILED_PRECONDITION")
    assert uuid(1) in refusal.message
    assert node.observer.allocations == ["NoPendingPod"]
    assert [event[:2] for event in await node.told()] == [("n1", "NoPendingPod")]


@pytest.mark.scenario("A8")
async def test_two_pods_that_both_fit_fail_closed_with_an_event_that_names_them(node):
    node.cluster.add(pod("a", pieces=[[grant(0, 1000)]]))
    node.cluster.add(pod("b", pieces=[[grant(0, 2000)]]))

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.AMBIGUOUS
    events = await node.told()
    assert {(name, reason) for name, reason, _ in events} == {("a", "AmbiguousPod"), ("b", "AmbiguousPod")}
    assert all("default/a" in text and "default/b" in text for _, _, text in events)
    assert node.cluster.writes == []


@pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.PROBATION])
@pytest.mark.scenario("A4")
async def test_a_device_that_is_not_well_is_refused_and_the_pod_told(node, health):
    node.snapshot.set(snapshot(4, d0=health))
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert refusal.reason is RefusalReason.UNHEALTHY_DEVICE
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    assert node.ledger.held == {}


async def test_a_suspect_device_is_still_served(node):
    node.snapshot.set(snapshot(4, d0=Health.SUSPECT))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["DEVICES"] == uuid(0)


async def test_a_decision_beyond_the_request_is_refused_and_the_lock_released(node):
    asks = [container(count=1, memory=500)]
    a = node.cluster.add(pod("a", asks, [[grant(0, 70_000)]]))
    node.cluster.annotate(**{"hami.io/mutex.lock": "2026-01-01T00:00:00Z,default,a"})

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert refusal.reason is RefusalReason.EXCEEDS_REQUEST
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    assert "hami.io/mutex.lock" not in node.cluster.node.annotations


async def test_a_part_is_refused_where_the_node_has_whole_devices_only(node):
    node.use(changed(FAMILY, whole_only="nothing here limits a part"))
    node.cluster.add(pod("a", pieces=[[grant(0, 1000, 10)]]))

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "is granted a part" in refusal.message
    assert "nothing here limits a part" in refusal.message
    assert node.ledger.held == {}


async def test_only_a_plain_init_containers_ids_may_go_to_the_next_container(node):
    containers = [container("plain", 1, init=True), container("side", 1, sidecar=True), container("main", 1)]
    node.cluster.add(pod("a", containers, [[grant(0)], [grant(1)], [grant(2)]]))

    for card in range(3):
        await node.allocator.allocate(ids((card, 0)))

    assert {held.container: held.init for held in node.ledger.held.values()} == {
        "plain": True,
        "side": False,
        "main": False,
    }


async def test_a_failed_pod_leads_nobody_before_the_api_server_knows(node):
    node.cluster.down = True
    node.cluster.add(pod("forged", [container(count=1, memory=500)], [[grant(0, 70_000)]]))
    await refused(node, ids((0, 0)))

    node.cluster.add(pod("honest", pieces=[[grant(0, 1000)]]))

    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "honest-uid"


async def test_a_decision_that_comes_a_moment_late_is_awaited(node):
    node.decide(wait=60.0)
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await asyncio.sleep(0.01)
    assert not asked.done()

    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    assert (await asked).edits.env["POD"] == "a-uid"


@pytest.mark.scenario("A4")
async def test_a_device_that_goes_while_the_decision_is_awaited_is_refused(node):
    node.decide(wait=60.0, serve_unannotated=True)
    asked = asyncio.create_task(node.allocator.allocate(ids((3, 0))))
    await asyncio.sleep(0.01)

    node.snapshot.set(snapshot(2))
    node.cluster.add(pod("a", pieces=[[grant(3)]]))

    with pytest.raises(RefusedError) as caught:
        await asked
    assert caught.value.reason is RefusalReason.UNKNOWN_DEVICE


@pytest.mark.scenario("A7")
async def test_a_cancelled_call_leaves_nothing_behind_and_is_not_counted_as_served(node):
    node.decide(wait=60.0)
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.wait([asked])

    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    assert node.observer.allocations == ["failed"]
    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "a-uid"


@pytest.mark.scenario("A1")
async def test_64_concurrent_calls_in_any_order_each_get_their_own_limits(node):
    node.snapshot.set(snapshot(64))
    for n in range(64):
        node.cluster.add(pod(f"p{n}", pieces=[[grant(n, 1000 + n)]]))
    order = random.Random(7).sample(range(64), 64)

    answers = await asyncio.gather(*(node.allocator.allocate(ids((n, n % 4))) for n in order))

    told = [(edits.env["POD"], edits.env["LIMIT_0"]) for edits in (answer.edits for answer in answers)]
    assert told == [(f"p{n}-uid", f"{1000 + n}m,10") for n in order]


async def test_advice_waits_for_a_decision_that_comes_a_moment_late(node):
    node.decide(wait=60.0)
    available = [offer.id for offer in node.allocator.offers.value]
    asked = asyncio.create_task(node.allocator.prefer(available, [], 1))
    await asyncio.sleep(0.01)
    node.cluster.add(pod("other", pieces=[[grant(0), grant(1)]]))
    await asyncio.sleep(0.01)
    assert not asked.done()

    node.cluster.add(pod("a", pieces=[[grant(3)]]))

    assert list(await asked) == ids((3, 0))


async def test_advice_for_nobody_known_is_given_in_the_end(node):
    available = [offer.id for offer in node.allocator.offers.value]

    assert list(await node.allocator.prefer(available, [], 2)) == ids((0, 0), (1, 0))


async def test_offers_are_all_shares_in_device_order_with_their_devices_health(node):
    follower = asyncio.create_task(node.allocator.follow())
    node.snapshot.set(snapshot(2, d1=Health.UNHEALTHY))

    await until(lambda: len(node.allocator.offers.value) == 8)

    offers = node.allocator.offers.value
    assert [o.id for o in offers] == ids(*[(card, share) for card in range(2) for share in range(4)])
    assert [o.healthy for o in offers] == [True] * 4 + [False] * 4
    assert {o.numa for o in offers} == {None}
    node.snapshot.close()
    await follower
    assert node.allocator.offers.closed


def devices(edits) -> list[str]:
    return edits.env["DEVICES"].split(",")


@pytest.mark.scenario("A10")
@pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])
async def test_where_an_inherited_id_was_a_cards_last_another_cards_stands_for_it(node, sidecar):
    kubelet = node.kubelet()
    for number in range(3):
        await kubelet.admit(node.cluster.add(pod(f"f{number}", pieces=[[grant(0)]])))
    asks = [container("i", 1, init=True), container("one", 1, sidecar=sidecar), container("two", 1)]
    a = node.cluster.add(pod("a", asks, [[grant(0)], [grant(1, 2000)], [grant(0, 3000)]]))

    answers = await kubelet.admit(a)

    assert [devices(answers[name].edits) for name in ("i", "one", "two")] == [[uuid(0)], [uuid(1)], [uuid(0)]]
    assert [sorted(kubelet.given[a.uid, name]) for name in ("one", "two")] == [ids((0, 3)), ids((1, 0))]
    await kubelet.start(a)


@pytest.mark.scenario("A10")
async def test_while_a_card_has_an_id_none_stands_for_it(node):
    kubelet = node.kubelet()
    asks = [container("i", 1, init=True), container("one", 1), container("two", 1)]
    a = node.cluster.add(pod("a", asks, [[grant(0)], [grant(1)], [grant(0)]]))

    await kubelet.admit(a)

    assert kubelet.given[a.uid, "two"] == ids((0, 1))


@pytest.mark.scenario("A10")
async def test_ids_that_init_containers_keep_do_not_keep_their_cards_from_the_next_pods(node):
    kubelet = node.kubelet()
    asks = [container("i", 4, init=True), container("one", 1)]
    for number in range(3):
        a = node.cluster.add(pod(f"a{number}", asks, [[grant(card) for card in range(4)], [grant(number)]]))
        await kubelet.admit(a)
        await node.settled()
        node.cluster.change(a, phase="Running")

    for number in range(4):
        answers = await kubelet.admit(node.cluster.add(pod(f"b{number}", pieces=[[grant(3)]])))

        assert devices(answers["main"].edits) == [uuid(3)]


@pytest.mark.parametrize(("phase", "there"), [("Pending", True), ("Running", False), ("Succeeded", False)])
async def test_what_an_init_container_had_of_a_card_is_free_once_the_pod_runs(node, phase, there):
    beside = []
    node.use(changed(FAMILY, place=lambda one, _device, others: beside.append(list(others)) or one))
    first = node.cluster.add(pod("a", [container("i", 1, init=True), container("main", 0)], [[grant(0)], []]))
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    node.cluster.change(first, phase=phase)
    beside.clear()

    node.cluster.add(pod("b", pieces=[[grant(0)]]))
    await node.allocator.allocate(ids((0, 1)))

    assert [bool(others) for others in beside] == [there] * len(beside)
    assert beside


@pytest.mark.scenario("A10")
async def test_no_id_stands_for_a_card_whose_shares_are_all_granted(node):
    kubelet = node.kubelet()
    for number in range(4):
        await kubelet.admit(node.cluster.add(pod(f"f{number}", pieces=[[grant(0)]])))
    forged = node.cluster.add(pod("forged", pieces=[[grant(0)]]))

    with pytest.raises(RefusedError) as caught:
        await kubelet.admit(forged)

    assert caught.value.reason is RefusalReason.DEVICE_MISMATCH
