"""Do reasons reach the objects they are about, bounded and without repeats?"""

import asyncio

import pytest

from hami_plugin.errors import ClusterError
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Backoff, cancel
from tests.support.builders import NODE, pod
from tests.support.cluster import FakeCluster
from tests.support.node import until


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def events(cluster, clock):
    recorder = EventRecorder(cluster, NODE, clock, Backoff(first=0.001, cap=0.002))
    task = asyncio.create_task(recorder.run())
    yield recorder
    await cancel(task)


async def test_a_refusal_is_told_to_every_pod_it_is_about_up_to_a_limit(events, cluster):
    events.refused([pod(f"p{n}") for n in range(9)], "Ambiguous", "who?")

    await until(lambda: len(cluster.events) == 4)
    assert {name for name, _, _ in cluster.events} == {"p0", "p1", "p2", "p3"}


async def test_a_refusal_about_nobody_is_told_to_the_node(events, cluster):
    events.refused([], "NoPendingPod", "nobody")

    await until(lambda: cluster.events == [(NODE, "NoPendingPod", "nobody")])


async def test_the_same_is_told_once_in_a_while(events, cluster, clock):
    for clock.now in (0.0, 1.0, 599.0, 600.0, 601.0, 1300.0):
        events.node("Xid", "79")
    events.node("Xid", "31")

    await until(lambda: len(cluster.events) == 4)
    assert [text for *_, text in cluster.events] == ["79", "79", "79", "31"]


async def test_a_pod_that_came_in_place_of_one_of_the_same_name_is_told_too(events, cluster):
    events.refused([pod("web-0", uid="the first")], "NotScheduledByHAMi", "pod ml/web-0 was not decided")
    events.refused([pod("web-0", uid="its successor")], "NotScheduledByHAMi", "pod ml/web-0 was not decided")

    await until(lambda: len(cluster.events) == 2)


async def test_a_server_that_is_away_is_awaited(events, cluster):
    cluster.fail("create events", ClusterError("away"), ClusterError("away", status=503))

    events.node("Xid", "79")

    await until(lambda: cluster.events)
    assert len(cluster.calls) == 3


async def test_an_event_that_the_server_will_not_take_is_dropped_at_once(events, cluster):
    cluster.fail("create events", ClusterError("no", status=422))

    events.node("Bad", "1")
    events.node("Good", "2")

    await until(lambda: cluster.events == [(NODE, "Good", "2")])
    assert len(cluster.calls) == 2


async def test_a_server_that_stays_away_does_not_keep_one_event_for_ever(events, cluster):
    cluster.fail("create events", *[ClusterError("away")] * 2 * EventRecorder.MAX_TRIES)

    events.node("First", "1")
    events.node("Second", "2")
    await until(lambda: len(cluster.calls) == 2 * EventRecorder.MAX_TRIES)
    events.node("Third", "3")

    await until(lambda: cluster.events == [(NODE, "Third", "3")])


async def test_a_storm_is_bounded_in_memory(cluster):
    events = EventRecorder(cluster, NODE)

    for n in range(5000):
        events.node("Xid", str(n))
        if n % 2 == 0:
            events._queue.get_nowait()

    assert events._queue.qsize() == EventRecorder.MAX_WAITING
    assert len(events._reported) <= EventRecorder.MAX_REPORTED


async def test_of_many_successes_at_once_some_are_left_out_and_never_a_warning(events, cluster, clock):
    def succeed(name: str, count: int) -> None:
        for number in range(count):
            events.pod(pod(f"{name}{number}"), "BindingSucceed", "bound", warning=False)

    succeed("burst", 2 * EventRecorder.MAX_SUCCESSES)
    events.pod(pod("refused"), "BindingFailed", "the node is gone", warning=True)
    await until(lambda: cluster.events and cluster.events[-1] == ("refused", "BindingFailed", "the node is gone"))
    assert len(cluster.events) == EventRecorder.MAX_SUCCESSES + 1

    clock.now += 10.5 * EventRecorder.SUCCESS_EVERY_S
    succeed("later", EventRecorder.MAX_SUCCESSES)
    events.pod(pod("last"), "BindingFailed", "the node is gone", warning=True)
    await until(lambda: cluster.events[-1][0] == "last")
    assert len(cluster.events) == EventRecorder.MAX_SUCCESSES + 1 + 10 + 1
