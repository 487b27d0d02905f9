"""A thread that does what it is handed, one after the other, and never keeps the process from ending."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar


class Worker:
    """The thread starts with the first work. It is a daemon: what never returns must not keep the process."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, work: Callable[[], None]) -> None:
        """Have ``work`` done when its turn comes. It must not raise."""
        if self._thread.ident is None:
            self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        """Let the thread end once its present work returns."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def carried(error: BaseException) -> Exception:
    """As a future can hold it, and whoever waits can handle it: no exit, and no end of an iteration."""
    match error:
        case StopIteration():
            problem = RuntimeError("StopIteration: an iterator ended where another item was expected")
        case Exception():
            return error
        case _:
            problem = RuntimeError(f"{type(error).__name__}: {error}")
    problem.__cause__ = error
    return problem


T = TypeVar("T")


class StuckError(TimeoutError):
    """A call on the thread has not come back in time. It is still running."""


class WorkThread:
    """Runs calls one after the other, in the order in which they were started.

    One that nobody waits for any more when its turn comes is not run: what it would do is out of date.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``function`` on the thread. The caller decides how long to wait, and cancels the answer to give it up.

        That keeps the call from running only before its turn: one that runs cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._worker.put(lambda: _perform(loop, function, answer))
        return answer

    async def call(self, function: Callable[[], T], timeout: float, *, last: bool = False) -> T:  # noqa: ASYNC109  # raises its own error
        """Run ``function`` and wait for it. ``StuckError`` after ``timeout`` seconds, waiting in line included.

        Nothing that is started after the ``last`` is run.
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
        """Let the thread end once its present call returns."""
        self._worker.close()


def _perform(loop: asyncio.AbstractEventLoop, function: Callable[[], T], answer: asyncio.Future[T]) -> None:
    """On the thread: call, and carry the outcome to the loop, if there still is one."""
    if answer.cancelled():
        return
    value: T | None = None
    problem: Exception | None = None
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001  # carried to whoever waits, or dropped with the wait
        problem = carried(error)

    def deliver() -> None:
        if answer.done():
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # T may itself be None

    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(deliver)


LINE = 5
"""How many times its own patience a call waits for its turn."""


def once(name: str, function: Callable[[], T], *, patience: float) -> T:
    """What ``function`` returns or raises on a thread of its own; ``StuckError`` after ``patience`` seconds.

    Whoever asks is held up meanwhile: this is for the start, before there is an event loop.
    """
    answer: Future[T] = Future()

    def perform() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001  # carried to whoever asked
            answer.set_exception(carried(error))

    worker = Worker(name)
    worker.put(perform)
    worker.close()
    try:
        problem = answer.exception(patience)
    except TimeoutError as error:
        raise StuckError(f"no answer within {patience:g} s") from error
    if problem is not None:
        raise problem
    return answer.result()


class BoundedCalls:
    """Makes one call at a time, while the event loop turns. Each has ``patience`` seconds from its turn on.

    A call that takes longer goes on on its thread, and until it comes back all others are refused at once: one that
    never returns holds up nobody twice. One that is given up before its turn is never made.
    """

    def __init__(self, name: str, *, patience: float) -> None:
        self._patience = patience
        self._thread = WorkThread(name)
        self._overdue: _Turn[object] | None = None

    async def ask(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises. ``StuckError`` when it does not come back, or an earlier one has not."""
        self._require_free()
        turn = _Turn(function)
        answer = self._thread.start(turn)
        last = time.monotonic() + LINE * self._patience
        try:
            while not answer.done():
                due = last if turn.began is None else turn.began + self._patience
                if (left := due - time.monotonic()) <= 0:
                    raise self._given_up(turn)
                await asyncio.wait([answer], timeout=min(left, self._patience))
                if turn.began is None:
                    self._require_free()
            return answer.result()
        finally:
            answer.cancel()

    def close(self) -> None:
        """Let the thread end once its present call returns."""
        self._thread.close()

    def _require_free(self) -> None:
        if self._overdue is not None and not self._overdue.ended:
            raise StuckError("an earlier call has not come back yet")

    def _given_up(self, turn: _Turn[T]) -> StuckError:
        if turn.began is None:
            return StuckError(f"no turn within {LINE * self._patience:g} s")
        self._overdue = turn  # type: ignore[assignment]  # only asked whether it has ended
        return StuckError(f"no answer within {self._patience:g} s")


class _Turn(Generic[T]):
    """A call that says when it has begun, in monotonic seconds, and whether it has ended. Read from the loop."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.began: float | None = None
        self.ended = False
        self._function = function

    def __call__(self) -> T:
        self.began = time.monotonic()
        try:
            return self._function()
        finally:
            self.ended = True
