"""Tools for one event loop, the threads beside it, and work that pauses for both.

- A watched value, capped back-off, and a clean end on signals.
- Work that pauses: a generator whose result is its value, for whoever has other things to do in between.
- Blocking calls on threads of their own: in order, with a timeout, and never in the way of the process's end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Pausing = Generator[None, None, T]


def run_without_pauses(work: Pausing[T]) -> T:
    """The result of the work, without a pause."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


class Worker:
    """The thread starts with the first work, and ends when nobody has the worker any more. It is a daemon thread: a
    call that never returns must not keep the process.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_perform_all, args=(self._work,), name=name, daemon=True)
        weakref.finalize(self, self._work.put, None).atexit = False

    def put(self, work: Callable[[], None]) -> None:
        """Queue ``work``. It must not raise."""
        if self._thread.ident is None:
            self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        """End the thread once its current work returns."""
        self._work.put(None)


def _perform_all(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # it may be the last that has its worker


def settable_error(error: BaseException) -> Exception:
    """The error as a future can hold it: SystemExit and StopIteration become a RuntimeError."""
    match error:
        case StopIteration():
            problem = RuntimeError("StopIteration: an iterator ended where another item was expected")
        case Exception():
            return error
        case _:
            problem = RuntimeError(f"{type(error).__name__}: {error}")
    problem.__cause__ = error
    return problem


class StuckError(TimeoutError):
    """A call on the thread has not returned in time. It is still running."""


class WorkThread:
    """Runs calls one at a time, in the order in which they were started.

    A call whose caller has stopped waiting before its turn is skipped: its result would be out of date.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``function`` on the thread. Cancelling the answer skips the call only before its turn.

        A call that has started cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._worker.put(lambda: _perform(loop, function, answer))
        return answer

    async def call(self, function: Callable[[], T], timeout: float, *, last: bool = False) -> T:  # noqa: ASYNC109  # raises its own error
        """Run ``function`` and wait for it. ``StuckError`` after ``timeout`` seconds, queueing included.

        Nothing runs after the ``last`` call.
        """
        answer = self.start(function)
        if last:
            self.close()
        try:
            done, _waiting = await asyncio.wait([answer], timeout=timeout)
            if not done:
                raise StuckError(f"no answer within {timeout:g} s")
            return answer.result()
        finally:
            answer.cancel()

    def close(self) -> None:
        """End the thread once its current call returns."""
        self._worker.close()


def _perform(loop: asyncio.AbstractEventLoop, function: Callable[[], T], answer: asyncio.Future[T]) -> None:
    """On the thread: call, and pass the outcome to the loop, if it is still open."""
    if answer.cancelled():
        return
    value: T | None = None
    problem: Exception | None = None
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001  # passed to the caller, or dropped if it has stopped waiting
        problem = settable_error(error)

    def deliver() -> None:
        if answer.done():
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # T may itself be None

    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(deliver)


QUEUE_FACTOR = 5
"""A call waits for its turn at most this many times its timeout."""


def call_on_thread(name: str, function: Callable[[], T], *, timeout: float) -> T:
    """Run ``function`` on its own thread and wait; ``StuckError`` after ``timeout`` seconds.

    It blocks the caller, so use it at startup only, before the event loop runs.
    """
    return wait_result(start_on_thread(name, function), timeout=timeout)


def start_on_thread(name: str, function: Callable[[], T]) -> Future[T]:
    """Call ``function`` on a thread of its own. ``wait_result`` waits for what comes of it."""
    answer: Future[T] = Future()

    def perform() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001  # passed to the caller
            answer.set_exception(settable_error(error))

    worker = Worker(name)
    worker.put(perform)
    worker.close()
    return answer


def wait_result(answer: Future[T], *, timeout: float) -> T:
    """What the call returned or raised; ``StuckError`` when it has not come back after ``timeout`` seconds."""
    try:
        problem = answer.exception(timeout)
    except TimeoutError as error:
        raise StuckError(f"no answer within {timeout:g} s") from error
    if problem is not None:
        raise problem
    return answer.result()


class BoundedCalls:
    """Runs one blocking call at a time beside the event loop. Each has ``timeout`` seconds from its turn on.

    A call that takes longer keeps running on its thread. Until it returns, all others are refused at once, so that a
    stuck call delays nobody twice. A call that is cancelled before its turn is never made.
    """

    def __init__(self, name: str, *, timeout: float) -> None:
        self._timeout = timeout
        self._thread = WorkThread(name)
        self._overdue: _Turn[object] | None = None

    async def ask(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises. ``StuckError`` if it, or an earlier call, does not return in time."""
        if self._overdue is not None:
            self._require_free()
        turn = _Turn(function)
        answer = self._thread.start(turn)
        last = time.monotonic() + QUEUE_FACTOR * self._timeout
        try:
            while not answer.done():
                due = last if turn.started is None else turn.started + self._timeout
                if (left := due - time.monotonic()) <= 0:
                    raise self._timed_out(turn)
                await asyncio.wait([answer], timeout=min(left, self._timeout))
                if turn.started is None:
                    self._require_free()
            return answer.result()
        finally:
            answer.cancel()

    def close(self) -> None:
        """End the thread once its current call returns."""
        self._thread.close()

    def _require_free(self) -> None:
        if self._overdue is not None and not self._overdue.ended:
            raise StuckError("an earlier call has not returned yet")

    def _timed_out(self, turn: _Turn[T]) -> StuckError:
        if turn.started is None:
            return StuckError(f"no turn within {QUEUE_FACTOR * self._timeout:g} s")
        self._overdue = turn  # type: ignore[assignment]  # only asked whether it has ended
        return StuckError(f"no answer within {self._timeout:g} s")


@dataclass(slots=True)
class _Turn(Generic[T]):
    """A call, with its start in monotonic seconds and whether it has ended. Read from the loop."""

    function: Callable[[], T]
    started: float | None = None
    ended: bool = False

    def __call__(self) -> T:
        self.started = time.monotonic()
        try:
            return self.function()
        finally:
            self.ended = True


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
