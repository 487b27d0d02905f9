"""Does one Event that is not taken hold up the others?"""

import asyncio

import pytest

from hami_plugin.errors import ClusterError
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Backoff, cancel
from tests.support.builders import NODE
from tests.support.node import until


class Server:
    """Takes Events but those whose reason has an answer here; an answer may be changed at any time."""

    def __init__(self, **answers):
        self.answers = answers
        self.tried = []
        self.written = []

    async def create_event(self, subject, *, reason, message, warning):
        self.tried.append(reason)
        await asyncio.sleep(0)
        status = self.answers.get(reason, self.answers.get("all"))
        if status is not None:
            raise ClusterError(f"{status}", status=status)
        self.written.append(reason)


@pytest.fixture
async def recording():
    tasks = []

    def begin(server, **backoff):
        recorder = EventRecorder(server, NODE, backoff=Backoff(**{"first": 0.001, "cap": 0.002, **backoff}))
        tasks.append(asyncio.create_task(recorder.run()))
        return recorder

    yield begin
    for task in tasks:
        await cancel(task)


@pytest.mark.parametrize("status", [400, 403, 404, 405, 410, 413, 422])
async def test_an_event_that_is_refused_for_good_is_tried_once(recording, status):
    server = Server(Denied=status)
    events = recording(server)

    events.node("Denied", "by admission")
    events.node("DriverHung", "now")

    await until(lambda: server.written == ["DriverHung"])
    await asyncio.sleep(0.05)  # many times as long as a second try would wait
    assert server.tried == ["Denied", "DriverHung"]


@pytest.mark.parametrize("status", [401, 408, 409, 500, 503])
async def test_an_event_that_may_be_taken_later_holds_up_no_other(recording, status):
    server = Server(Stuck=status)
    events = recording(server, first=3600.0, cap=3600.0, jitter=0.0)

    events.node("Stuck", "1")
    for number in range(3):
        events.node("DriverHung", str(number))

    await until(lambda: server.written == ["DriverHung"] * 3)
    assert server.tried == ["Stuck", *server.written]


async def test_an_event_that_comes_later_is_not_held_up_by_those_that_wait(recording):
    server = Server(Stuck=500)
    events = recording(server, first=3600.0, cap=3600.0)
    events.node("Stuck", "1")
    await until(lambda: server.tried == ["Stuck"])

    events.node("DriverHung", "now")

    await until(lambda: server.written == ["DriverHung"])


async def test_an_event_is_tried_again_until_it_is_taken(recording):
    server = Server(Late=500)
    events = recording(server)
    events.node("Late", "1")
    await until(lambda: len(server.tried) == 4)

    server.answers.clear()

    await until(lambda: server.written == ["Late"])


@pytest.mark.scenario("P1")
async def test_a_server_that_is_away_is_asked_by_one_event_at_a_time_and_takes_all_when_it_is_back(recording):
    server = Server(all=0)
    events = recording(server, first=0.2, cap=0.2, jitter=0.0)
    for number in range(50):
        events.node("Xid", str(number))
    await until(lambda: len(server.tried) == 3)

    assert not server.written
    server.answers.clear()

    await until(lambda: len(server.written) == 50)
    assert len(server.tried) <= 60


async def test_each_event_is_given_up_after_so_many_tries(recording):
    server = Server(First=500, Second=500)
    events = recording(server)
    for reason in ("First", "Second", "Third"):
        events.node(reason, "x")

    await until(lambda: len(server.tried) == 2 * EventRecorder.MAX_TRIES + 1)
    await asyncio.sleep(0.05)

    assert server.tried.count("First") == server.tried.count("Second") == EventRecorder.MAX_TRIES
    assert server.written == ["Third"]


async def test_those_that_wait_for_another_try_count_among_all_that_wait(recording):
    server = Server(Xid=500)
    events = recording(server, first=3600.0, cap=3600.0)
    for number in range(2000):
        events.node("Xid", str(number))
        if number % 50 == 0:
            await asyncio.sleep(0.001)

    assert len(server.tried) <= EventRecorder.MAX_WAITING
    assert events._queue.qsize() + len(events._again) <= EventRecorder.MAX_WAITING
