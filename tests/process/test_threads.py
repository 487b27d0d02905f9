"""Does a vendor's call hold up the loop, or anybody for longer than it said?"""

import asyncio
import gc
import sys
import threading

import pytest

from hami_plugin.process.concurrency import BoundedCalls, StuckError, WorkThread, call_on_thread


@pytest.fixture
def calls():
    calls = BoundedCalls("test-calls", timeout=60.0)
    yield calls
    calls.close()


@pytest.fixture
def impatient():
    calls = BoundedCalls("test-calls", timeout=0.05)
    yield calls
    calls.close()


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


async def again(calls, function):
    """What ``function`` returns, once the calls before it are over."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await calls.ask(function)
            except StuckError:
                await asyncio.sleep(0.001)


async def test_calls_are_made_on_one_thread_that_is_not_the_loops(calls):
    threads = {await calls.ask(threading.get_ident) for _ in range(10)}

    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_no_thread_is_there_before_the_first_call():
    before = threading.active_count()
    BoundedCalls("idle", timeout=1.0)

    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("its own"), StopIteration()])
async def test_an_error_is_raised_where_it_was_asked_for_and_the_next_call_is_made(calls, error):
    def fails():
        raise error

    with pytest.raises((ValueError, TimeoutError, RuntimeError)) as caught:
        await calls.ask(fails)

    assert caught.value is error or caught.value.__cause__ is error
    assert await calls.ask(lambda: None) is None


async def test_an_exit_ends_nobody(calls):
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await calls.ask(lambda: sys.exit(3))

    assert await calls.ask(lambda: "next") == "next"


async def test_a_call_that_does_not_come_back_is_given_up_and_the_next_are_refused_until_it_does(impatient, gate):
    with pytest.raises(StuckError, match=r"no answer within 0\.05 s"):
        await impatient.ask(gate.wait)

    ran = []
    with pytest.raises(StuckError, match="an earlier call has not returned yet"):
        await impatient.ask(lambda: ran.append("refused"))
    gate.set()

    assert await again(impatient, lambda: "next") == "next"
    assert ran == []


async def test_the_loop_turns_while_calls_wait_for_each_other(calls, gate):
    waiting = [asyncio.create_task(calls.ask(gate.wait)) for _ in range(6)]
    for _ in range(100):
        await asyncio.sleep(0)

    assert not any(one.done() for one in waiting)
    gate.set()
    assert await asyncio.gather(*waiting) == [True] * 6


async def test_a_call_has_its_time_from_its_turn_on_and_not_from_its_place_in_the_line():
    calls, pause = BoundedCalls("test-calls", timeout=2.0), threading.Event()

    done = await asyncio.gather(*(calls.ask(lambda: pause.wait(0.55)) for _ in range(4)))

    assert done == [False] * 4
    calls.close()


async def test_who_waits_in_line_behind_a_call_that_never_comes_back_is_refused_and_its_call_is_never_made(
    impatient, gate
):
    ran = []
    first = asyncio.create_task(impatient.ask(gate.wait))
    others = [asyncio.create_task(impatient.ask(lambda n=n: ran.append(n))) for n in range(5)]

    with pytest.raises(StuckError):
        await first
    for other in others:
        with pytest.raises(StuckError):
            await other
    gate.set()
    await again(impatient, lambda: None)

    assert ran == []


def test_before_there_is_a_loop_a_call_is_waited_for_as_long_as_it_may_take(gate):
    assert call_on_thread("test", lambda: "answer", timeout=30.0) == "answer"
    with pytest.raises(StuckError, match=r"no answer within 0\.01 s"):
        call_on_thread("test", gate.wait, timeout=0.01)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        call_on_thread("test", lambda: sys.exit(3), timeout=30.0)


async def test_a_thread_ends_when_nobody_has_its_worker_any_more():
    thread = WorkThread("dropped")
    await thread.call(lambda: None, 60.0)
    (running,) = [one for one in threading.enumerate() if one.name == "dropped"]

    del thread
    gc.collect()

    await asyncio.to_thread(running.join, 60.0)
    assert not running.is_alive()
