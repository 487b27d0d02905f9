"""HAMi's own cases of its reasons: how they are told, and read again."""

from __future__ import annotations

from hami_plugin.scheduler.engine.devices import Reason, parse_summary, summary
from tests.support.hami import Json, asks


@asks("reasons", "GenReason")
def test_reasons_are_told_in_hamis_words(case: Json):
    reasons = {Reason(name): count for name, count in case["input"]["reasons"].items()}

    assert summary(reasons, case["input"]["cards"]) == case["expected"]["result"]


@asks("reasons", "ParseReason")
def test_told_reasons_are_read_again(case: Json):
    assert parse_summary(case["input"]["reason"]) == case["expected"]["result"]
