"""Every recorded question about what we have is answered as HAMi does, or otherwise by a difference that is listed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hami_plugin.conformance.answers import GENERAL
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.questions import Case, read
from hami_plugin.conformance.replay import OF_DECISIONS
from hami_plugin.conformance.report import lines
from hami_plugin.conformance.run import asked, differences, documented_in

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "vectors").glob("*.jsonl.xz"))


@cache
def catalog() -> Catalog:
    return Catalog()


def documented() -> frozenset[str]:
    return documented_in((ROOT / "docs" / "differences.md").read_text())


def ours(case: Case) -> bool:
    """About a family that exists here, or about none."""
    kind, word = case.question["fn"], case.question.get("vendor")
    special = {name for parity in catalog().parities for name in parity.answers}
    return word in catalog().words() or kind in GENERAL or kind in special


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_no_answer_differs_without_a_written_reason(file: Path) -> None:
    cases = [case for case in read(file) if ours(case)]
    if not cases:
        pytest.skip("about vendors that are not here yet")

    outcome = asked(cases, catalog(), documented())

    assert not outcome.unexplained, "\n".join(lines({file.name: outcome}))
    assert outcome.agreed > len(cases) / 2


def test_every_difference_is_documented() -> None:
    assert {difference.id for difference in differences(catalog())} | {*OF_DECISIONS} <= documented()
