"""A comparison that could not fail would be worth nothing: planted faults are found."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.hami.__main__ import PAGE, main
from tests.hami.catalog import Catalog
from tests.hami.run import Case, asked, documented_in, read

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors"


def plant(tmp_path: Path, name: str, change: Any) -> Path:
    """The first ten questions of a file, with something changed in each of HAMi's answers."""
    with lzma.open(VECTORS / f"{name}.jsonl.xz", "rt") as file:
        rows = [json.loads(next(file)) for _ in range(10)]
    for row in rows:
        change(row["out"])
    planted = tmp_path / f"{name}.jsonl"
    planted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return planted


def oracle(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_the_module_is_a_command_that_fails_for_a_planted_fault(tmp_path: Path) -> None:
    file = plant(tmp_path, "hygon_request", lambda out: out["request"].update(nums=out["request"]["nums"] + 1))
    whole = str(VECTORS / "hygon_request.jsonl.xz")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.hami", name]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    good, bad = run(whole), run(str(file))

    assert good.returncode == 0, good.stderr
    assert bad.returncode == 1
    assert "DISAGREE" in bad.stdout


def test_another_reason_is_a_disagreement_and_shown_by_field(tmp_path: Path) -> None:
    file = plant(tmp_path, "hygon_fit", lambda out: out.update(reason=out["reason"] + "x"))

    code, output = oracle(str(file))

    assert code == 1
    assert "10 questions: 0 agree, 10 DISAGREE" in output
    assert "reason: ours" in output


def test_a_wrong_booking_is_a_disagreement(tmp_path: Path) -> None:
    def more(out: dict[str, Any]) -> None:
        for device in out.get("usage_after") or ():
            device["usedmem"] += 1

    file = plant(tmp_path, "hygon_fit", more)
    report = json.loads(oracle("--json", str(file))[1])["hygon_fit.jsonl"]

    assert report["unexplained"]
    assert {field["field"].split("[")[0] for one in report["unexplained"] for field in one["fields"]} == {"usage_after"}


def test_an_undocumented_difference_does_not_count(tmp_path: Path) -> None:
    page = tmp_path / "differences.md"
    page.write_text("| D-002 | other | thing | |\n")

    code, output = oracle("--differences", str(page), str(VECTORS / "nvidia_request.jsonl.xz"))

    assert code == 1
    assert "13 DISAGREE" in output


def test_a_difference_does_not_hide_an_answer_that_is_not_right() -> None:
    (wrapped,) = [case for case in read(VECTORS / "nvidia_request.jsonl.xz") if case.id == "nvidia_request-0018"]
    limits = {**wrapped.question["container"]["limits"], "nvidia.com/gpu": "3"}
    other = Case(
        id="x",
        question={**wrapped.question, "container": {"name": "c", "limits": limits}},
        answers=wrapped.answers,
    )

    outcome = asked([wrapped, other], Catalog(), frozenset({"D-100"}))

    assert dict(outcome.explained) == {"D-100": 1}
    assert [one.id for one in outcome.unexplained] == ["x"]


def test_one_vendors_questions_can_be_asked_alone() -> None:
    code, output = oracle("--vendor", "hygon", str(VECTORS / "nvidia_fit.jsonl.xz"))

    assert code == 0
    assert "0 questions" in output


def test_a_family_that_is_not_here_is_said(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"id": "a", "in": {"fn": "request", "vendor": "Acme", "container": {}}, "out": {}}\n')

    code, output = oracle(str(file))

    assert code == 1
    assert "no vendor here has a family 'Acme'" in output


def test_a_file_without_questions_is_named(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("[]\n")

    code, output = oracle(str(file))

    assert code == 1
    assert f"{file}:1: is no question" in output


@pytest.mark.parametrize("text", ["", "x:", "[{", "[1]", '[{"index": 0}]', "1,2,3,4,5,6,7,x:"])
def test_a_text_of_hami_that_a_rule_cannot_read_is_a_disagreement(text: str) -> None:
    """It was recorded wrongly, or HAMi writes something new: in either case nothing explains it."""
    case = next(case for case in read(VECTORS / "codec.jsonl.xz") if explained_by("D-025", case))

    outcome = asked([replace(case, answers=({"str": text},))], Catalog(), frozenset({"D-002", "D-025"}))

    assert [one.id for one in outcome.unexplained] == [case.id]


@pytest.mark.parametrize("part", ["failed", "scores", "best", "annotations", "requests"])
def test_a_decision_of_hami_that_lacks_a_part_is_a_disagreement(part: str) -> None:
    documented = documented_in(PAGE.read_text(encoding="utf-8"))
    cases = (case for case in read(VECTORS / "schedule.jsonl.xz") if case.answers[0].get(part))
    case = next(case for case in cases if explained_by("D-140", case))
    theirs = {key: value for key, value in case.answers[0].items() if key != part}

    outcome = asked([replace(case, answers=(theirs,))], Catalog(), documented)

    assert [one.id for one in outcome.unexplained] == [case.id]


def explained_by(difference: str, case: Case) -> bool:
    return asked([case], catalog(), documented_in(PAGE.read_text(encoding="utf-8"))).explained[difference] > 0


@cache
def catalog() -> Catalog:
    return Catalog()
