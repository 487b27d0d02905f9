"""Every row about decisions has a rule or a test, and every rule and test has its row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hami.catalog import Catalog
from tests.hami.replay import OF_DECISIONS
from tests.hami.run import differences

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
SHOWN = ("Scheduling", "Admission, quotas and the filter", "The scheduler on a live cluster")
"""Sections whose every row is shown."""


def rows(section: str) -> set[str]:
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^\| (D-\d{3}) \|", text, flags=re.MULTILINE))


def ruled() -> list[str]:
    return [*[one.id for one in differences(Catalog())], *OF_DECISIONS]


def shown() -> Iterator[tuple[str, str]]:
    """Each id that a test is marked with, and the test."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.difference" in text else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from ((name, f"{file.relative_to(ROOT)}::{node.name}") for name in marked(node))


def marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.difference":
            yield from (str(ast.literal_eval(argument)) for argument in mark.args)


@pytest.mark.parametrize("section", SHOWN)
def test_every_row_has_a_rule_or_a_test(section: str) -> None:
    assert rows(section) - {*ruled()} - {name for name, _ in shown()} == set()


def test_every_rule_and_every_marked_test_has_its_row() -> None:
    known = set(re.findall(r"^\| (D-\d{3}) \|", PAGE, flags=re.MULTILINE))

    assert {name for name in ruled() if name not in known} == set()
    assert {f"{test} shows {name}" for name, test in shown() if name not in known} == set()


def test_every_row_has_one_rule_and_one_number() -> None:
    numbers = re.findall(r"^\| (D-\d{3}) \|", PAGE, flags=re.MULTILINE)

    assert len(numbers) == len(set(numbers))
    assert len(ruled()) == len(set(ruled()))
