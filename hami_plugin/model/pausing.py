"""Work that pauses: a generator whose result is its value, for whoever has other things to do in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

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
