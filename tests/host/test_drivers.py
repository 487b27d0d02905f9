"""Does a driver that blocks ever hold up the loop, or the end of the process?"""

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from hami_plugin.process.concurrency import StuckError, WorkThread


@pytest.fixture
def thread():
    thread = WorkThread("test-driver")
    yield thread
    thread.close()


async def test_calls_run_in_order_on_one_thread_of_its_own(thread):
    order = []

    def call(number):
        order.append(number)
        return threading.current_thread().name

    names = await asyncio.gather(*(thread.start(lambda n=n: call(n)) for n in range(20)))

    assert order == list(range(20))
    assert set(names) == {"test-driver"}


async def test_an_error_reaches_whoever_waits_and_the_thread_goes_on(thread):
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0, 30)

    assert await thread.call(lambda: None, 30) is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StopIteration(), "StopIteration: an iterator ended"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError("by hand"), "CancelledError: by hand"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_no_future_can_hold_reaches_whoever_waits_too_and_the_thread_goes_on(thread, error, words):
    def call():
        raise error

    with pytest.raises(RuntimeError, match=words) as caught:
        await thread.call(call, 30)

    assert caught.value.__cause__ is error
    assert await thread.call(lambda: "next", 30) == "next"


async def test_a_call_that_does_not_come_back_is_reported_while_the_loop_turns(thread):
    gate = threading.Event()

    with pytest.raises(StuckError, match=r"0\.01 s"):
        await thread.call(gate.wait, 0.01)
    with pytest.raises(StuckError):
        await thread.call(lambda: "waits in line", 0.01)
    gate.set()

    assert await thread.call(lambda: "next", 30) == "next"


async def test_a_call_that_is_given_up_before_its_turn_never_runs(thread):
    gate, ran = threading.Event(), []
    with pytest.raises(StuckError):
        await thread.call(gate.wait, 0.01)

    for number in range(50):
        with pytest.raises(StuckError):
            await thread.call(lambda n=number: ran.append(n), 0.001)
    gate.set()
    await thread.call(lambda: None, 30)

    assert ran == []


async def test_a_call_whose_caller_is_cancelled_before_its_turn_never_runs(thread):
    gate, ran = threading.Event(), []
    first = thread.start(gate.wait)
    waiting = asyncio.create_task(thread.call(lambda: ran.append("late"), 30))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await first
    await thread.call(lambda: None, 30)

    assert ran == []


async def test_the_answer_to_a_call_that_nobody_waits_for_any_more_is_dropped(thread):
    gate = threading.Event()
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))

    def late():
        gate.wait()
        raise ValueError

    with pytest.raises(StuckError):
        await thread.call(late, 0.01)
    gate.set()
    await thread.call(lambda: None, 30)
    gc.collect()

    assert problems == []


def test_an_answer_after_the_loops_end_harms_nobody(thread):
    gate, ended = threading.Event(), threading.Event()

    async def leave():
        thread.start(gate.wait)
        thread.start(ended.set)

    asyncio.run(leave())
    gate.set()

    assert ended.wait(30)


def test_a_call_that_never_comes_back_does_not_keep_the_process():
    program = """
import asyncio, threading
from hami_plugin.process.concurrency import WorkThread

async def main():
    WorkThread("stuck").start(threading.Event().wait)
    await asyncio.sleep(0.01)

asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout == "ended\n"
    assert done.stderr == ""
