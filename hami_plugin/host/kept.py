"""An answer that costs something, kept for a while: a vendor's tool is not run at each look."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hami_plugin.host.tools import ToolError

T = TypeVar("T")


class Kept(Generic[T]):
    """``ask`` is called again after ``every`` seconds, or when what the answer is about has changed.

    An error is not kept: the next one who wants the answer asks again.
    """

    def __init__(self, ask: Callable[[], T], *, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._every = every
        self._clock = clock
        self._kept: tuple[T, Hashable, float] | None = None

    def answer(self, about: Hashable) -> T:
        """The answer, at most ``every`` seconds old."""
        now = self._clock()
        if self._kept is None or self._kept[1] != about or now - self._kept[2] >= self._every:
            self._kept = None
            self._kept = (self._ask(), about, now)
        return self._kept[0]


class LastKnown(Generic[T]):
    """What a tool last told: it is asked at most once in ``every`` seconds, and what was known stays when it fails.

    ``problem`` is why it failed the last time, if it did. An empty answer is no news.
    """

    def __init__(
        self, ask: Callable[[], T], first: T, *, every: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._known = first
        self._every = every
        self._clock = clock
        self._asked = float("-inf")
        self.problem = ""

    def answer(self) -> T:
        if self._clock() - self._asked >= self._every:
            try:
                self._known, self.problem = self._ask() or self._known, ""
            except ToolError as error:
                self.problem = str(error)
            self._asked = self._clock()
        return self._known
