"""What does Allocate hand out, and what does it say when it must not?"""

import asyncio
import random

import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.device import Health
from hami_plugin.wire.keys import BIND_PHASE, PHASE_FAILED
from tests.support.builders import (
    container,
    grant,
    ids,
    pod,
    snapshot,
    uuid,
)
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


async def test_a_repeated_call_gets_the_same_answer_and_takes_nothing_more(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    first = await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    second = await node.allocator.allocate(ids((0, 0)))

    assert second == first
    assert len(node.ledger.held) == 1


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


async def test_a_device_that_goes_while_the_decision_is_awaited_is_refused(node):
    node.decide(wait=60.0, serve_unannotated=True)
    asked = asyncio.create_task(node.allocator.allocate(ids((3, 0))))
    await asyncio.sleep(0.01)

    node.snapshot.set(snapshot(2))
    node.cluster.add(pod("a", pieces=[[grant(3)]]))

    with pytest.raises(RefusedError) as caught:
        await asked
    assert caught.value.reason is RefusalReason.UNKNOWN_DEVICE


async def test_a_cancelled_call_leaves_nothing_behind_and_is_not_counted_as_served(node):
    node.decide(wait=60.0)
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.wait([asked])

    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    assert node.observer.allocations == ["failed"]
    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "a-uid"


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
    available = [offer.id for offer in node.allocator.offers()]
    asked = asyncio.create_task(node.plugin.prefer(available, [], 1))
    await asyncio.sleep(0.01)
    node.cluster.add(pod("other", pieces=[[grant(0), grant(1)]]))
    await asyncio.sleep(0.01)
    assert not asked.done()

    node.cluster.add(pod("a", pieces=[[grant(3)]]))

    assert list(await asked) == ids((3, 0))


async def test_advice_for_nobody_known_is_given_in_the_end(node):
    available = [offer.id for offer in node.allocator.offers()]

    assert list(await node.plugin.prefer(available, [], 2)) == ids((0, 0), (1, 0))


async def test_offers_are_all_shares_in_device_order_with_their_devices_health(node):
    follower = asyncio.create_task(node.plugin.follow())
    node.snapshot.set(snapshot(2, d1=Health.UNHEALTHY))

    await until(lambda: len(node.plugin.offers.value) == 8)

    offers = node.plugin.offers.value
    assert [o.id for o in offers] == ids(*[(card, share) for card in range(2) for share in range(4)])
    assert [o.healthy for o in offers] == [True] * 4 + [False] * 4
    assert {o.numa for o in offers} == {None}
    node.snapshot.close()
    await follower
    assert node.plugin.offers.closed
