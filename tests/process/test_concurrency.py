"""A value that can be watched, and waiting that grows."""

import asyncio
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.process import concurrency
from hami_plugin.process.concurrency import Backoff, Watched, cancel, wait_event
from tests.support.sleeping import Sleeping


async def test_a_change_wakes_every_waiter_and_an_equal_value_none():
    watched = Watched(1)
    waiters = [asyncio.create_task(watched.changed(watched.version, timeout=60)) for _ in range(3)]
    await asyncio.sleep(0)

    assert not watched.set(1)
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)

    assert watched.set(2)
    assert await asyncio.gather(*waiters) == [True] * 3


async def test_waiting_for_what_has_changed_already_does_not_wait():
    watched = Watched(1)
    watched.set(2)

    assert await watched.changed(0, timeout=0)


async def test_the_time_being_up_is_an_answer():
    assert not await Watched(1).changed(0, timeout=0.001)


async def test_a_deadline_around_the_wait_stays_the_callers():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await Watched(1).changed(0)


async def test_a_touch_wakes_although_the_value_is_the_same():
    watched = Watched([])
    waiter = asyncio.create_task(watched.changed(watched.version, timeout=60))
    await asyncio.sleep(0)

    watched.touch()

    assert await waiter


async def test_a_follower_sees_the_present_value_and_then_each_newer_one():
    watched, seen = Watched(0), []

    async def follow():
        async for value in watched.follow():
            seen.append(value)  # noqa: PERF401  # seen while it runs

    task = asyncio.create_task(follow())
    for value in (1, 2, 3):
        await asyncio.sleep(0.001)
        watched.set(value)
    await asyncio.sleep(0.001)
    watched.close()
    await task

    assert seen == [0, 1, 2, 3]


async def test_a_slow_follower_skips_to_the_last_value():
    watched, seen = Watched(0), []

    async def follow():
        async for value in watched.follow():
            seen.append(value)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.001)
    for value in range(1, 100):
        watched.set(value)
    await asyncio.sleep(0.02)
    watched.close()
    await task

    assert seen == [0, 99]


async def test_a_paced_follower_is_not_woken_more_often(monkeypatch):
    order = []

    async def sleep(seconds):
        order.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(concurrency, "asyncio", Sleeping(sleep))
    watched = Watched(0)
    states = watched.follow(every=20.0)

    for value in (1, 2, 3):
        order.append(await anext(states))
        watched.set(value)

    assert order == [0, 20.0, 1, 20.0, 2]
    await states.aclose()


async def test_closing_ends_followers_and_waiters_and_refuses_values():
    watched = Watched(0)
    waiter = asyncio.create_task(watched.changed(watched.version))
    await asyncio.sleep(0)

    watched.close()

    assert not await waiter
    assert not watched.set(1)
    assert watched.closed
    assert [value async for value in watched.follow()] == []


async def test_a_follower_that_leaves_disturbs_no_other():
    watched, seen = Watched(0), []

    async def follow():
        async for value in watched.follow():
            seen.append(value)  # noqa: PERF401  # seen while it runs

    leaver, stayer = (asyncio.create_task(follow()) for _ in range(2))
    await asyncio.sleep(0.001)
    await cancel(leaver)
    watched.set(1)
    await asyncio.sleep(0.001)

    assert seen == [0, 0, 1]
    watched.close()
    await stayer


@given(first=st.floats(0.001, 10), factor=st.floats(1, 4), cap=st.floats(0.001, 100), jitter=st.floats(0, 1))
def test_delays_never_exceed_the_cap_and_are_never_negative(first, factor, cap, jitter):
    delays = list(islice(Backoff(first=first, factor=factor, cap=cap, jitter=jitter).delays(), 20))

    assert all(0 <= delay <= cap for delay in delays)


def test_delays_grow_by_the_factor_up_to_the_cap_and_start_anew_each_time():
    backoff = Backoff(first=1, factor=2, cap=10, spread=lambda low, high: (low + high) / 2)

    assert list(islice(backoff.delays(), 6)) == [1, 2, 4, 8, 10, 10]
    assert next(backoff.delays()) == 1


@pytest.mark.parametrize("ending", ["obeys", "finished", "fails"])
async def test_a_task_that_is_cancelled_has_ended_whatever_it_ends_with(ending):
    async def work():
        if ending == "finished":
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if ending == "fails":
                raise ValueError from None
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)

    await cancel(task)

    assert task.done()
    assert ending != "fails" or isinstance(task.exception(), ValueError)


async def test_waiting_again_and_again_leaves_no_task_behind():
    event = asyncio.Event()

    answers = [await wait_event(event, within=0.001) for _ in range(5)]
    event.set()

    assert [*answers, await wait_event(event, within=5)] == [False] * 5 + [True]
    assert asyncio.all_tasks() == {asyncio.current_task()}
