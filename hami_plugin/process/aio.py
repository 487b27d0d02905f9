"""Tools for one event loop: a watched value, capped back-off, and a clean end on signals."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Watched(Generic[T]):
    """A value whose readers wake on each change. A slow reader may skip values, but always sees the last one.

    Use it on the event loop only. ``value``, ``version`` and ``closed`` are read-only; ``set``, ``touch`` and ``close``
    change them. ``close`` ends every ``follow``.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self.version = 0
        self.closed = False
        self._wake = asyncio.Event()

    def set(self, value: T) -> bool:
        """Publish ``value``. False if it equals the current one; then nobody wakes."""
        if self.closed or value == self.value:
            return False
        self.value = value
        self.touch()
        return True

    def touch(self) -> None:
        """Wake readers although the value is the same object, because it changed inside."""
        self.version += 1
        self._notify()

    def close(self) -> None:
        self.closed = True
        self._notify()

    async def changed(self, since: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # a plain answer, not an exception
        """Wait until the version is above ``since``. False if the timeout expires or the value is closed first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.version <= since and not self.closed:
                    await self._wake.wait()
        return self.version > since

    async def follow(self, *, every: float = 0.0) -> AsyncGenerator[T, None]:
        """Yield the current value, then each newer one, at most one in ``every`` seconds."""
        while not self.closed:
            seen = self.version
            yield self.value
            if every:
                await asyncio.sleep(every)
            await self.changed(seen)

    def _notify(self) -> None:
        wake, self._wake = self._wake, asyncio.Event()
        wake.set()


async def wait_any_changed(seen: Iterable[tuple[Watched[Any], int]], *, within: float) -> None:
    """Wait until one of the values is above its version or is closed, at most ``within`` seconds."""
    tasks = [asyncio.ensure_future(value.changed(version)) for value, version in seen]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays in seconds: ``first``, multiplied by ``factor`` each time, at most ``cap``, randomized by ``jitter``."""

    first: float = 1.0
    factor: float = 2.0
    cap: float = 30.0
    jitter: float = 0.2
    spread: Callable[[float, float], float] = random.uniform

    def delays(self) -> Iterator[float]:
        delay = self.first
        while True:
            yield min(self.cap, delay * self.spread(1 - self.jitter, 1 + self.jitter))
            delay = min(self.cap, delay * self.factor)


async def cancel(task: asyncio.Task[object]) -> None:
    """Cancel ``task`` and wait for its end, whatever its outcome."""
    task.cancel()
    await asyncio.wait([task])


async def wait_event(event: asyncio.Event, *, within: float) -> bool:
    """Whether ``event`` is set within that many seconds. No waiter is left behind."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


async def poll_condition(condition: Callable[[], bool], *, within: float, every: float = 0.02) -> bool:
    """Look at a condition that wakes nobody until it holds, at most ``within`` seconds. Whether it does."""
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(every)
    return True


async def run_in_slices(
    work: Generator[None, None, T], *, slice_s: float = 0.005, clock: Callable[[], float] = time.perf_counter
) -> T:
    """The result of work that pauses often. After each slice, everything else on the loop gets its turn."""
    until = clock() + slice_s
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if clock() >= until:
            await asyncio.sleep(0)
            until = clock() + slice_s


async def ended_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. The first SIGINT, SIGTERM or SIGHUP cancels it, so that it cleans up.

    The process then exits with 128 plus the signal's number, unless ``work`` returns a result all the same.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    caught: list[int] = []

    def stop(number: int) -> None:
        if not caught:
            caught.append(number)
            task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise SystemExit(128 + caught[0]) from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
