"""Not too often: the server's Retry-After for all writers, and the least distance between lists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

RETRY_AFTER_CAP = 120.0


class Gate:
    """Shut for as long as the server asked us to stay away. One gate for all writers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opens = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until it opens; 0 when it is open."""
        return max(0.0, self._opens - self._clock())

    def shut(self, seconds: float) -> None:
        """Stay shut for ``seconds``, capped: a wrong header must not silence us for a day."""
        self._opens = max(self._opens, self._clock() + min(seconds, RETRY_AFTER_CAP))


class Pace:
    """At most one turn in ``every`` seconds over time; ``burst`` turns may follow at once after a quiet time."""

    def __init__(self, *, every: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._allowance = every * (burst - 1)
        self._clock = clock
        self._due = 0.0

    @property
    def wait(self) -> float:
        """For how long the next turn would have to wait."""
        return max(0.0, self._due - self._allowance - self._clock())

    def take(self) -> float:
        """Take the next turn; the answer is how long to wait before using it."""
        wait = self.wait
        self._due = max(self._due, self._clock()) + self._every
        return wait

    async def turn(self) -> None:
        await asyncio.sleep(self.take())
