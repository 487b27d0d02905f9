"""Every function that HAMi's own tests call is answered by a test of ours, or excused with a reason."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.hami import ANSWERED, FOLDER, named, recorded

ROOT = Path(__file__).parents[2]
FILES = sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def modules() -> tuple[ModuleType, ...]:
    """The test modules that ask cases."""
    asking = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "tests.support.hami import" in path.read_text()
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in asking if path != Path(__file__)]
    return tuple(importlib.import_module(name) for name in names)


def answered() -> frozenset[tuple[str, str]]:
    tests = [test for module in modules() for name, test in vars(module).items() if name.startswith("test_")]
    return frozenset().union(*(getattr(test, ANSWERED, ()) for test in tests))


def excuses() -> Iterator[tuple[ModuleType, Mapping[str, str]]]:
    for module in modules():
        yield module, getattr(module, "EXCUSED", {})


@pytest.mark.parametrize("file", FILES)
def test_every_function_is_answered_or_excused(file: str) -> None:
    called = {case["fn"] for case in recorded(file)}
    open_ones = called - {function for name, function in answered() if name == file}
    excused = [name for _, table in excuses() for name in table]

    assert {function for function in open_ones if not any(named(function, name) for name in excused)} == set()


def test_an_excuse_says_why_and_is_needed() -> None:
    open_ones = {(file, case["fn"]) for file in FILES for case in recorded(file)} - answered()

    for module, table in excuses():
        for name, reason in table.items():
            assert len(reason.split()) > 2, f"{module.__name__}: {name}"
            assert any(named(function, name) for _, function in open_ones), f"{module.__name__}: {name} is not needed"
