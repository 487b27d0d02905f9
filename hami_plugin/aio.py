"""Small tools for one event loop: a value that can be watched, and waiting that grows and has a cap."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hami_plugin.model.pausing import Outcome

T = TypeVar("T")


class Watched(Generic[T]):
    """A value with readers that wake on change. A slow reader may skip values, and always sees the last one.

    Use it on the event loop only. ``value`` and ``version`` are for reading; ``set`` and ``touch`` change them.
    ``close`` ends every ``follow``.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self.version = 0
        self._closed = False
        self._wake = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    def set(self, value: T) -> bool:
        """Publish ``value``. Equal to the present one: nobody wakes, and the answer is False."""
        if self._closed or value == self.value:
            return False
        self.value = value
        self.touch()
        return True

    def touch(self) -> None:
        """Wake readers although the value is the same object (it changed inside)."""
        self.version += 1
        self._notify()

    def close(self) -> None:
        self._closed = True
        self._notify()

    async def changed(self, since: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # a plain answer, not an exception
        """Wait until the version is above ``since``. False: the time was up, or the value was closed first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.version <= since and not self._closed:
                    await self._wake.wait()
        return self.version > since

    async def follow(self, *, every: float = 0.0) -> AsyncGenerator[T, None]:
        """Yield the present value, then each newer one, at most one in ``every`` seconds."""
        while not self._closed:
            seen = self.version
            yield self.value
            if every:
                await asyncio.sleep(every)
            await self.changed(seen)

    def _notify(self) -> None:
        wake, self._wake = self._wake, asyncio.Event()
        wake.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times in seconds: ``first``, then ``factor`` times more, never above ``cap``, spread by ``jitter``."""

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


async def cancelled(task: asyncio.Task[object]) -> None:
    """Cancel ``task`` and wait until it has ended, whatever it ends with."""
    task.cancel()
    await asyncio.wait([task])


async def happened(event: asyncio.Event, *, within: float) -> bool:
    """Wait for ``event`` at most ``within`` seconds, and leave nothing behind that waits on. Whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


async def in_slices(
    work: Generator[None, None, T], *, slice_s: float = 0.005, clock: Callable[[], float] = time.perf_counter
) -> T:
    """The result of work that pauses often. After each slice of it everything else on the loop has its turn."""
    outcome, until = Outcome(work), clock() + slice_s
    for _pause in outcome:
        if clock() >= until:
            await asyncio.sleep(0)
            until = clock() + slice_s
    return outcome.value


async def ended_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` answers. The first SIGINT, SIGTERM or SIGHUP cancels it, so that it clears up.

    The process then ends with 128 and the signal's number, unless ``work`` answers all the same.
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
