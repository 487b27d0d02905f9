"""How much a run asks: ``make test`` a part of every subject, ``make test-all`` (``TEST_ALL=1``) all of it.

What only the second runs as a whole is marked ``@pytest.mark.full``. Here is what both run, in two sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = bool(os.environ.get("TEST_ALL"))
PART = 10
"""One of so many cases is asked where not all are."""


def sized(part: T, full: T) -> T:
    """The size of this run: ``full`` only in ``make test-all``."""
    return full if FULL else part


def examples(full: int) -> int:
    """How many examples Hypothesis makes, of ``full`` in ``make test-all``."""
    return sized(max(full // PART, 5), full)


def spread(cases: Iterable[T], kind: Callable[[T], Hashable] = lambda _case: None, part: int = PART) -> list[T]:
    """All cases in a full run, else one of ``part`` of each kind: its first, and so on at equal distances."""
    if FULL:
        return list(cases)
    seen: dict[Hashable, int] = {}
    chosen = []
    for case in cases:
        number = seen[kind(case)] = seen.get(kind(case), -1) + 1
        if number % part == 0:
            chosen.append(case)
    return chosen


def whole(table: Iterable[tuple[str, T]]) -> Callable[[Callable[[T], object]], Callable[[], None]]:
    """One test of a table of named cases, which fails with all cases that fail: a test of each takes longer to begin
    than to ask."""
    cases = list(table)

    def together(test: Callable[[T], object]) -> Callable[[], None]:
        @wraps(test)
        def asked() -> None:
            failed = []
            for name, case in cases:
                try:
                    test(case)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # whatever a case fails with
                    failed.append(AssertionError(name))
                    failed[-1].__cause__ = error
            assert cases
            if failed:
                raise ExceptionGroup(f"of {len(cases)} cases these fail: {', '.join(map(str, failed))}", failed)

        del asked.__wrapped__  # else pytest would look for a fixture named as the case
        return asked

    return together
