"""Work that pauses: a generator whose result is its value, for whoever has other things to do in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Pausing = Generator[None, None, T]


class Outcome(Generic[T]):
    """The work's pauses, to be gone through; after them its ``value``."""

    value: T

    def __init__(self, work: Pausing[T]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[None]:
        self.value = yield from self._work


def at_once(work: Pausing[T]) -> T:
    """The result of the work, without a pause."""
    outcome = Outcome(work)
    for _pause in outcome:
        pass
    return outcome.value
