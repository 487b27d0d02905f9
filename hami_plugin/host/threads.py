"""A thread that does what it is handed, one after the other, and never keeps the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


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
