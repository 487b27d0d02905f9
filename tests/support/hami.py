"""HAMi's own unit tests as data: their cases for our tests, and which test says that it answers which function.

A test that takes one case at a time is decorated with ``asks``; one that reads the cases in its own way with
``answers``. What has no counterpart here stands in its module's ``EXCUSED``: function to reason. The ledger
(`tests/vectors/test_hami_tests_ledger.py`) reads both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.scale import whole

Json = Mapping[str, Any]
Test = TypeVar("Test", bound=Callable[..., object])

FOLDER = Path(__file__).parents[1] / "vectors" / "hami-tests"
ANSWERED = "hami_functions"


@cache
def recorded(file: str) -> tuple[Json, ...]:
    """All cases of a file."""
    return tuple(json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))["vectors"])


def named(function: str, name: str) -> bool:
    """Whether ``name`` means this function: in full (`nvidia.assertNuma`), or by its end (`Devices.Fit`, `Fit`)."""
    return function == name or function.endswith(f".{name}")


def vectors(files: str | Iterable[str], *names: str) -> list[Json]:
    """The cases of these functions. A name that none of the files has is an error."""
    every = [case for file in ([files] if isinstance(files, str) else files) for case in recorded(file)]
    unknown = [name for name in names if not any(named(case["fn"], name) for case in every)]
    assert not unknown, f"no case of {unknown} in {files}"
    return [case for case in every if any(named(case["fn"], name) for name in names)]


def answers(files: str | Iterable[str], *names: str) -> Callable[[Test], Test]:
    """Says that this test asks all cases of these functions."""
    kept = [files] if isinstance(files, str) else list(files)
    functions = {(file, case["fn"]) for file in kept for case in recorded(file)}
    chosen = {(file, function) for file, function in functions if any(named(function, name) for name in names)}
    assert all(any(named(function, name) for _, function in chosen) for name in names), f"{names} not in {files}"

    def noted(test: Test) -> Test:
        setattr(test, ANSWERED, getattr(test, ANSWERED, frozenset()) | chosen)
        return test

    return noted


def asks(files: str | Iterable[str], *names: str) -> Callable[[Test], Test]:
    """Gives this test each case of these functions, one at a time, as ``case``.

    A test that asks for nothing else is one test of all cases.
    """
    kept = [files] if isinstance(files, str) else list(files)
    cases = [(f"{file}-{case['id']}", case) for file in kept for case in recorded(file)]
    chosen = [(name, case) for name, case in cases if any(named(case["fn"], one) for one in names)]

    def given(test: Test) -> Test:
        noted = answers(kept, *names)(test)
        if [*signature(test).parameters] == ["case"] and not iscoroutinefunction(test):
            return whole(chosen)(noted)
        return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in chosen])(noted)

    return given
