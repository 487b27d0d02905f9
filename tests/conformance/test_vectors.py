"""Every recorded question is answered as HAMi does, or otherwise by a difference that is listed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.questions import read
from hami_plugin.conformance.replay import OF_DECISIONS
from hami_plugin.conformance.report import lines
from hami_plugin.conformance.run import asked, differences, documented_in
from tests.support.scale import spread

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "vectors").glob("*.jsonl.xz"))


@cache
def catalog() -> Catalog:
    return Catalog()


def documented() -> frozenset[str]:
    return documented_in((ROOT / "docs" / "differences.md").read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_no_answer_differs_without_a_written_reason(file: Path) -> None:
    cases = spread(read(file), lambda case: (case.question["fn"], case.question.get("vendor")))

    outcome = asked(cases, catalog(), documented())

    assert not outcome.unexplained, "\n".join(lines({file.name: outcome}))
    assert outcome.agreed >= len(cases) / 2


def test_every_difference_is_documented() -> None:
    assert {difference.id for difference in differences(catalog())} | {*OF_DECISIONS} <= documented()
