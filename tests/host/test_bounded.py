"""Is whoever asks held up for as long as it said, and not a second time?"""

import sys
import threading
import time

import pytest

from hami_plugin.host.bounded import BoundedCalls
from hami_plugin.host.drivers import StuckError


@pytest.fixture
def calls():
    calls = BoundedCalls("test-calls", patience=60.0)
    yield calls
    calls.close()


def test_calls_are_made_on_one_thread_that_is_not_the_callers(calls):
    threads = {calls.ask(threading.get_ident) for _ in range(10)}

    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_no_thread_is_there_before_the_first_call():
    before = threading.active_count()
    BoundedCalls("idle", patience=1.0)

    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("its own"), StopIteration()])
def test_an_error_is_raised_where_it_was_asked_for_and_the_next_call_is_made(calls, error):
    def fails():
        raise error

    with pytest.raises((ValueError, TimeoutError, RuntimeError)) as caught:
        calls.ask(fails)

    assert caught.value is error or caught.value.__cause__ is error
    assert calls.ask(lambda: None) is None


def test_an_exit_ends_nobody(calls):
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        calls.ask(lambda: sys.exit(3))

    assert calls.ask(lambda: "next") == "next"


def test_a_call_that_does_not_come_back_holds_up_once_until_it_does(calls):
    gate = threading.Event()
    with pytest.raises(StuckError, match=r"no answer within 0\.05 s"):
        calls.ask(gate.wait, patience=0.05)

    began = time.monotonic()
    with pytest.raises(StuckError, match="an earlier call has not come back yet"):
        calls.ask(lambda: "next")
    assert time.monotonic() - began < 1

    gate.set()
    end = time.monotonic() + 30
    while True:
        try:
            assert calls.ask(lambda: "next") == "next"
            break
        except StuckError:
            assert time.monotonic() < end
