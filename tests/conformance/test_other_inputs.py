"""Questions that were never recorded: HAMi's documented rules answer them, and ours differ by written reasons only."""

from __future__ import annotations

import copy
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.compare import compared
from hami_plugin.conformance.questions import Case, read
from hami_plugin.conformance.report import lines
from hami_plugin.conformance.run import asked, documented_in
from tests.support import hami_fit

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "vectors" / "nvidia_fit.jsonl.xz"
DOCUMENTED = documented_in((ROOT / "docs" / "differences.md").read_text(encoding="utf-8"))
ORDERS = ("", "spread", "binpack", "topology-aware", "spread,topology-aware", "binpack,topology-aware", "mutex", "numa")
ROUNDS = 4
"""Variations of each recorded question."""


@cache
def recorded() -> tuple[Case, ...]:
    return tuple(read(RECORDED))


def test_the_documented_rules_answer_as_hami_did() -> None:
    """Where they do, they may be asked what was not recorded."""
    for case in recorded():
        told = hami_fit.answer(case.question)
        known = [{key: answer[key] for key in told if key in answer} for answer in case.answers]
        assert any(not compared(case.question, told, one) for one in known), (case.id, told, known)


def varied(question: Any, chance: random.Random) -> Any:
    """The same cards in another order and otherwise used, and another request of another pod."""
    other = copy.deepcopy(question)
    other.pop("apply", None)
    cards, request, said = other["devices"], other["request"], other["pod"].setdefault("annotations", {}) or {}
    other["pod"]["annotations"] = said
    if chance.random() < 0.5:
        chance.shuffle(cards)
    for card in cards:
        if chance.random() < 0.4 and card.get("mode") != "mig":
            card["used"] = chance.randint(0, card["count"])
            card["usedmem"] = chance.choice((0, card["totalmem"] // 4, card["totalmem"] // 2, card["totalmem"]))
            card["usedcores"] = chance.choice((0, 25, 50, card["totalcore"]))
        if chance.random() < 0.2:
            card["numa"] = chance.randint(0, 1)
        card["health"] = chance.random() < 0.95
    request["nums"] = chance.choice((1, 1, 2, 2, 3, 4))
    request["coresreq"] = chance.choice((0, 0, 10, 50, 100, 150))
    request["memreq"], request["mempercentagereq"] = chance.choice(
        ((0, 100), (0, 50), (1000, 101), (0, 1), (20000, 101))
    )
    if chance.random() < 0.7:
        said["hami.io/gpu-scheduler-policy"] = chance.choice(ORDERS)
    if chance.random() < 0.2:
        said["nvidia.com/numa-bind"] = chance.choice(("true", "false", "1"))
    for key in ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"):
        if chance.random() < 0.1:
            said[key] = ",".join(card["id"] for card in chance.sample(cards, len(cards) // 2))
    if chance.random() < 0.15:
        other["quota_limits"] = {"nvidia.com/gpumem": chance.choice((1000, 3000, 100_000, 300_000))}
    return other


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_other_inputs_differ_by_written_reasons_only(seed: int) -> None:
    chance = random.Random(seed)
    questions = [varied(case.question, chance) for case in recorded()]
    cases = [Case(id=f"{n}", question=one, answers=(hami_fit.answer(one),)) for n, one in enumerate(questions)]

    outcome = asked(cases, Catalog(), DOCUMENTED)

    assert not outcome.unexplained, "\n".join(lines({"varied": outcome}))
    assert outcome.agreed > len(cases) / 2
    assert Counter(outcome.explained)
