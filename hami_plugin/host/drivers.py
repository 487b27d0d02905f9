"""One thread for one driver: calls that block, as awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from hami_plugin.host.threads import Worker, carried

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
