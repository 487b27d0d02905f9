"""Short calls of a vendor's code that the event loop has to wait for: made on a thread of their own, for so long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from hami_plugin.host.drivers import StuckError, carried

T = TypeVar("T")


class BoundedCalls:
    """Makes one call at a time. Whoever asks is held up for ``patience`` seconds at most.

    A call that takes longer goes on on its thread, and until it comes back all others are refused at once: so one that
    never returns holds up nobody twice. The thread is a daemon, and starts with the first call.
    """

    def __init__(self, name: str, *, patience: float) -> None:
        self._patience = patience
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stuck: Future[object] | None = None

    def ask(self, function: Callable[[], T], *, patience: float | None = None) -> T:
        """What ``function`` returns or raises. ``StuckError`` when it does not come back, or an earlier one has not."""
        if self._stuck is not None and not self._stuck.done():
            raise StuckError("an earlier call has not come back yet")
        if self._thread.ident is None:
            self._thread.start()
        answer: Future[T] = Future()
        self._work.put(lambda: _perform(function, answer))
        within = self._patience if patience is None else patience
        try:
            problem = answer.exception(within)
        except TimeoutError as error:
            self._stuck = answer  # type: ignore[assignment]  # only asked whether it is done
            raise StuckError(f"no answer within {within:g} s") from error
        if problem is not None:
            raise problem
        return answer.result()

    def close(self) -> None:
        """Let the thread end once its present call returns."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _perform(function: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001  # carried to whoever asked
        answer.set_exception(carried(error))
