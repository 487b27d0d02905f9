"""Every recorded question is answered as HAMi does, or otherwise by a difference that is listed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.hami.catalog import Catalog
from tests.hami.replay import OF_DECISIONS
from tests.hami.run import asked, differences, documented_in, lines, read
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
