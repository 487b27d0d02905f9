"""Calls of a vendor's code that look at the host: on a thread of their own, each within a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from hami_plugin.host.drivers import StuckError, WorkThread
from hami_plugin.host.threads import Worker, carried

T = TypeVar("T")

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
