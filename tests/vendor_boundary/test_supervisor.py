"""Does a loop that fails begin again, and does somebody hear of it for as long as it matters?"""

import asyncio

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.model.ports import NullObserver
from hami_plugin.process.concurrency import Backoff, cancel
from hami_plugin.vendor_boundary import guard as module
from hami_plugin.vendor_boundary.guard import AGAIN_S, VendorErrors, VendorSupervisor
from tests.support.node import until
from tests.support.sleeping import Sleeping


class Counting(NullObserver):
    def __init__(self):
        self.mistakes = []

    def mistake(self, vendor, step):
        self.mistakes.append((vendor, step))


class Loop:
    """Raises what it is told to, then runs for ever."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.runs = 0

    async def __call__(self):
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.Event().wait()


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def supervisor(counting):
    """Well again a second after a failure: a test has seen by then what was wrong, however slow the machine is."""
    return VendorSupervisor(VendorErrors("toy", counting), Backoff(first=0.001, cap=1.0))


async def test_a_loop_that_fails_begins_again_and_is_well_after_a_while(supervisor, counting):
    loop, crashed = Loop(ZeroDivisionError("a"), ZeroDivisionError("b")), []
    task = asyncio.create_task(supervisor.keep("offers x", "offers", loop, crashed.append))
    await until(lambda: loop.runs == 3)

    assert crashed == [supervisor.wrong["offers x"].replace(": b", ": a"), supervisor.wrong["offers x"]]
    assert "vendor toy raised an unexpected error, offers: ZeroDivisionError: b" in supervisor.wrong["offers x"]
    assert counting.mistakes == [("toy", "offers")] * 2
    await until(lambda: not supervisor.wrong)
    await cancel(task)
    assert loop.runs == 3


async def test_a_designed_error_is_told_and_no_mistake(supervisor, counting):
    loop = Loop(HamiError("too many", hint="take fewer"))
    task = asyncio.create_task(supervisor.keep("offers x", "offers", loop))
    await until(lambda: loop.runs == 2)

    assert supervisor.wrong == {"offers x": "too many; take fewer"}
    assert counting.mistakes == []
    await cancel(task)


async def test_a_loop_that_ends_by_itself_is_left_alone(supervisor):
    async def ends():
        return

    async with asyncio.timeout(20):
        await supervisor.keep("offers x", "offers", ends)

    assert supervisor.wrong == {}


async def test_what_fails_while_it_is_withdrawn_keeps_no_loop_from_beginning_again(supervisor, counting):
    def crashed(_words):
        raise KeyError("it")

    loop = Loop(ZeroDivisionError())
    task = asyncio.create_task(supervisor.keep("driver x", "driver", loop, crashed))
    await until(lambda: loop.runs == 2)

    assert counting.mistakes == [("toy", "driver"), ("toy", "withdrawal")]
    await cancel(task)


async def test_waits_grow_while_a_loop_fails_at_once(counting, monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(module, "asyncio", Sleeping(sleep))
    keeper = VendorSupervisor(VendorErrors("toy", counting), Backoff(first=1.0, factor=100.0, cap=1000.0, jitter=0.0))
    loop = Loop(*[ZeroDivisionError()] * 4)
    task = asyncio.create_task(keeper.keep("offers x", "offers", loop))
    await until(lambda: loop.runs == 5)
    await cancel(task)

    assert waits == [1.0, 100.0, 1000.0, 1000.0]


def test_the_same_mistake_is_logged_once_and_counted_each_time(counting, capsys):
    now = [0.0]
    mistakes = VendorErrors("toy", counting, clock=lambda: now[0])
    for text in ("a", "a", "b"):
        mistakes.record("register", ValueError(text))
    now[0] = AGAIN_S
    mistakes.record("register", ValueError("b"))

    assert capsys.readouterr().out.count("vendor raised an unexpected error") == 3
    assert len(counting.mistakes) == 4
