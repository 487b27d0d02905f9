"""Questions that were never recorded: HAMi's documented rules answer them, and ours differ by written reasons only."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hami import requests
from tests.hami.answers import answer
from tests.hami.catalog import Catalog
from tests.hami.compare import compared
from tests.hami.run import Case, asked, documented_in, lines, read
from tests.support import hami_fit, hami_fits, hami_variations

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "vectors" / "nvidia_fit.jsonl.xz"
DOCUMENTED = documented_in((ROOT / "docs" / "differences.md").read_text(encoding="utf-8"))
ORDERS = ("", "spread", "binpack", "topology-aware", "spread,topology-aware", "binpack,topology-aware", "mutex", "numa")
ROUNDS = 4
"""Variations of each recorded question about NVIDIA."""
EACH = int(os.environ.get("OTHER_INPUTS", "30"))
"""Questions of each other kind; thousands of them take hours."""
FITS = [file for file in sorted(RECORDED.parent.glob("*_fit.jsonl.xz")) if file != RECORDED]
REQUESTS = sorted(RECORDED.parent.glob("*_request.jsonl.xz"))
TIES = 40
"""So often HAMi's random choices are made anew until the recorded one is among them."""


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


def named(file: Path) -> str:
    return file.name.removesuffix(".jsonl.xz")


@pytest.mark.parametrize("file", FITS, ids=named)
def test_the_documented_rules_of_every_vendor_answer_as_hami_did(file: Path) -> None:
    for case in read(file):
        told = (hami_fits.answer(case.question, random.Random(seed)) for seed in range(TIES))
        same = (not compared(case.question, one, theirs) for one in told for theirs in case.answers)
        assert any(same), (case.id, hami_fits.answer(case.question), case.answers[0])


@pytest.mark.parametrize("file", REQUESTS, ids=named)
def test_the_documented_rules_read_requests_as_hami_did(file: Path) -> None:
    for case in read(file):
        told = requests.answer(case.question)
        assert not compared(case.question, told, case.answers[0]), (case.id, told)


def unexplained(cases: list[Case]) -> str:
    outcome = asked(cases, Catalog(), DOCUMENTED)
    assert outcome.total == len(cases)
    return "\n".join(lines({"varied": outcome})) if outcome.unexplained else ""


@pytest.mark.parametrize("file", [RECORDED, *FITS], ids=named)
def test_other_devices_requests_and_pods_differ_by_written_reasons_only(file: Path) -> None:
    chance = random.Random(file.name)
    questions = [case.question for case in read(file)]
    cases = []
    for number in range(EACH):
        question = hami_variations.varied(questions, chance)
        if file == RECORDED:
            question.pop("apply", None)
        theirs = hami_fit.answer(question) if file == RECORDED else hami_fits.answer(question, chance)
        cases.append(Case(id=f"{number}", question=question, answers=(theirs,)))

    assert not unexplained(cases)


@pytest.mark.parametrize("file", REQUESTS, ids=named)
def test_other_amounts_differ_by_written_reasons_only(file: Path) -> None:
    chance = random.Random(file.name)
    questions = [case.question for case in read(file)]
    varied = [hami_variations.varied_container(questions, chance) for _ in range(EACH)]

    assert not unexplained([Case(id="", question=one, answers=(requests.answer(one),)) for one in varied])


def card(number: int, numa: int, **more: Any) -> dict[str, Any]:
    usual = {"count": 10, "health": True, "totalcore": 100, "totalmem": 81920, "type": "NVIDIA-A100"}
    free = {"used": 0, "usedmem": 0, "usedcores": 0, "mode": "hami-core"}
    return {"id": f"GPU-{number}", "index": number, "numa": numa, **usual, **free, **more}


def bound(cards: list[dict[str, Any]], count: int, **more: Any) -> Any:
    request = {"nums": count, "type": "NVIDIA", "memreq": 1000, "mempercentagereq": 101, "coresreq": 25}
    pod = {"annotations": {"nvidia.com/numa-bind": "true"}}
    return {"fn": "fit", "vendor": "NVIDIA", "devices": cards, "request": request, "pod": pod, **more}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(
            bound([card(0, 0, health=False), card(1, 1, used=10), card(2, 1)], 3), id="another NUMA node is broken"
        ),
        pytest.param(
            bound([card(0, 1, used=10), card(1, 0), card(2, 1, health=False)], 2), id="the first card is broken"
        ),
        pytest.param(
            bound([card(0, 0), card(1, 1), card(2, 0)], 2, quota_limits={"nvidia.com/gpumem": 1500}),
            id="the quota ends within a NUMA node",
        ),
    ],
)
def test_bound_to_a_numa_node_as_hami_or_by_a_written_reason(question: Any) -> None:
    assert not unexplained([Case(id="", question=question, answers=(hami_fit.answer(question),))])


def test_a_refusal_does_not_count_a_numa_node_without_a_card_for_the_pod() -> None:
    question = bound([card(0, 0, health=False), card(1, 1, used=10), card(2, 1)], 3)

    told = answer(question, Catalog())

    assert told["reason"] == hami_fit.answer(question)["reason"]
    assert "NumaNotFit" not in told["reason"]


def test_percent_of_several_npus_may_be_more_than_they_have_cores() -> None:
    usual = {"count": 7, "health": True, "totalcore": 20, "totalmem": 65536, "type": "Ascend910C", "numa": 0}
    npus = [{"id": f"NPU-{n}", "index": n, "used": 0, "usedmem": 0, "usedcores": 0, **usual} for n in range(4)]
    request = {"nums": 2, "type": "Ascend910C", "memreq": 16384, "mempercentagereq": 0, "coresreq": 50}
    node = {"name": "n0", "annotations": {"hami-vnpu-core": "true"}}
    pod = {"annotations": {"huawei.com/vnpu-mode": "hami-core"}}
    question = {"fn": "fit", "vendor": "Ascend910C", "devices": npus, "request": request, "pod": pod, "node": node}
    question |= {"apply": True}
    answers = [hami_fits.answer(question, random.Random(seed)) for seed in range(8)]

    assert len({one["devices"]["Ascend910C"][0]["uuid"] for one in answers}) == 2, "HAMi's choice is random"
    assert not unexplained([Case(id="", question=question, answers=(theirs,)) for theirs in answers])


def test_negative_memory_beside_a_fraction_of_slices_is_no_request() -> None:
    limits = {"enflame.com/drs-gcu": "1.5", "enflame.com/gcu-memory": "-5", "enflame.com/gcu-core": "10"}
    question = {"fn": "request", "vendor": "Enflame", "container": {"name": "c0", "limits": limits, "requests": {}}}

    assert not unexplained([Case(id="", question=question, answers=(requests.answer(question),))])
