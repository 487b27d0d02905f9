"""Short calls of a vendor's code that the event loop has to wait for: made on a thread of their own, for so long."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hami_plugin.host.drivers import StuckError
from hami_plugin.host.threads import Worker, carried

T = TypeVar("T")


class BoundedCalls:
    """Makes one call at a time. Whoever asks is held up for ``patience`` seconds at most.

    A call that takes longer goes on on its thread, and until it comes back all others are refused at once: so one that
    never returns holds up nobody twice.
    """

    def __init__(self, name: str, *, patience: float) -> None:
        self._patience = patience
        self._worker = Worker(name)
        self._stuck: Future[object] | None = None

    def ask(self, function: Callable[[], T], *, patience: float | None = None) -> T:
        """What ``function`` returns or raises. ``StuckError`` when it does not come back, or an earlier one has not."""
        if self._stuck is not None and not self._stuck.done():
            raise StuckError("an earlier call has not come back yet")
        answer: Future[T] = Future()
        self._worker.put(lambda: _perform(function, answer))
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
        self._worker.close()


def _perform(function: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001  # carried to whoever asked
        answer.set_exception(carried(error))
