"""Ask every question of a file, and sort the answers: equal, different on purpose, or different."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from tests.hami import replay
from tests.hami.answers import DECISION, answer, consistent
from tests.hami.catalog import Catalog
from tests.hami.compare import UNREADABLE, Disagreement, compared, excused
from tests.hami.differences import DIFFERENCES
from tests.hami.parity import Difference, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question, and HAMi's answers: the one that was recorded, then others that it gave to the same question."""

    id: str
    question: Json
    answers: tuple[Json, ...]


def read(path: Path) -> Iterator[Case]:
    """The cases of a file, in order. HamiError names the line that is no question."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _case(line, f"{path}:{number}")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise HamiError(f"{path}: cannot be read: {error}", hint="give a .jsonl or a .jsonl.xz file") from error


def _case(line: str, where: str) -> Case:
    try:
        row = json.loads(line)
        answer = {key: value for key, value in row["out"].items() if key != "variants"}
        variants = tuple(row["out"].get("variants") or ())
        return Case(id=str(row["id"]), question=row["in"], answers=(answer, *variants))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HamiError(f"{where}: is no question", hint='each line is {"id", "in", "out"}') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """A question whose answers differ without a reason that is written down."""

    id: str
    question: Json
    disagreements: tuple[Disagreement, ...]


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What a file's questions showed. ``explained`` counts by the id of the difference."""

    agreed: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[Unexplained] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.agreed + self.explained.total() + len(self.unexplained)


def differences(catalog: Catalog) -> tuple[Difference, ...]:
    """Every difference that anybody declares."""
    return (*DIFFERENCES, *(one for parity in catalog.parities for one in parity.differences))


Explained = Callable[[Case, Json], str | None]
"""The id of the difference by which this answer of ours is right, though it is none of HAMi's; None if none is."""


def explaining(catalog: Catalog, documented: Container[str]) -> Explained:
    """By the differences that are ``documented``."""
    known = [difference for difference in differences(catalog) if difference.id in documented]
    return lambda case, ours: _explained(case, ours, known, documented, catalog)


def asked(cases: Iterable[Case], catalog: Catalog, documented: Container[str]) -> Outcome:
    """Ask them all. A difference counts only if its id is ``documented``."""
    outcome = Outcome()
    explained = explaining(catalog, documented)
    for case in cases:
        try:
            ours = answer(case.question, catalog)
        except HamiError as error:
            nothing = Disagreement(field="", ours=str(error), theirs=case.answers[0])
            outcome.unexplained.append(Unexplained(id=case.id, question=case.question, disagreements=(nothing,)))
            continue
        disagreements = [compared(case.question, ours, theirs) for theirs in case.answers]
        if not all(disagreements) and (case.question["fn"] != DECISION or consistent(case.question, ours, catalog)):
            outcome.agreed += 1
        elif reason := explained(case, ours):
            outcome.explained[reason] += 1
        else:
            closest = min(disagreements, key=len)
            outcome.unexplained.append(Unexplained(id=case.id, question=case.question, disagreements=closest))
    return outcome


def _explained(
    case: Case, ours: Json, known: Sequence[Difference], documented: Container[str], catalog: Catalog
) -> str | None:
    if not consistent(case.question, ours, catalog):
        return None
    if case.question["fn"] == DECISION:
        return _explained_decision(case, ours, known, documented, catalog)
    answers = ((difference, theirs) for difference in known for theirs in case.answers)
    return next((one.id for one, theirs in answers if excused(one, case.question, ours, theirs)), None)


def _explained_decision(
    case: Case, ours: Json, known: Sequence[Difference], documented: Container[str], catalog: Catalog
) -> str | None:
    """A decision may differ in several ways: the first stands for all of them."""
    for theirs in case.answers:
        try:
            ids = replay.explained(
                case.question,
                ours,
                theirs,
                catalog,
                known=known,
                answer=lambda asked: answer(asked, catalog),
                consistent=lambda asked, told: consistent(asked, told, catalog),
            )
        except UNREADABLE:
            continue
        if ids and all(found in documented for found in ids):
            return ids[0]
    return None


def documented_in(text: str) -> frozenset[str]:
    """The ids in a page of differences: what stands in the first cell of a table's row."""
    cells = (line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| D-"))
    return frozenset(cells)


def about(cases: Iterable[Case], words: Sequence[str]) -> Iterator[Case]:
    """The cases about families with these words. Without words: all of them."""
    return (case for case in cases if not words or case.question.get("vendor") in words)


MAX_SHOWN = 3
MAX_FIELDS = 6
MAX_CHARACTERS = 160


def lines(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """One line for each file, then its first disagreements field by field, then the sum."""
    width = max((len(name) for name in outcomes), default=0)
    for name, outcome in outcomes.items():
        explained = ", ".join(f"{count} by {reason}" for reason, count in sorted(outcome.explained.items()))
        yield (
            f"{name:{width}}  {outcome.total:5} questions: {outcome.agreed} agree"
            f"{f', {explained}' if explained else ''}"
            f"{f', {len(outcome.unexplained)} DISAGREE' if outcome.unexplained else ''}"
        )
        for one in outcome.unexplained[:MAX_SHOWN]:
            yield from _shown(one)
        if len(outcome.unexplained) > MAX_SHOWN:
            yield f"    and {len(outcome.unexplained) - MAX_SHOWN} more"
    total = sum(outcome.total for outcome in outcomes.values())
    bad = sum(len(outcome.unexplained) for outcome in outcomes.values())
    yield f"{total} questions, {bad} unexplained"


def as_json(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The same by file, with every disagreement."""
    return {
        name: {
            "questions": outcome.total,
            "agree": outcome.agreed,
            "explained": dict(sorted(outcome.explained.items())),
            "unexplained": [
                {
                    "id": one.id,
                    "fields": [{"field": d.field, "ours": d.ours, "hami": d.theirs} for d in one.disagreements],
                }
                for one in outcome.unexplained
            ],
        }
        for name, outcome in outcomes.items()
    }


def _shown(one: Unexplained) -> Iterator[str]:
    yield f"    {one.id}"
    for disagreement in one.disagreements[:MAX_FIELDS]:
        field = disagreement.field or "(the whole answer)"
        yield f"      {field}: ours {_short(disagreement.ours)}, HAMi's {_short(disagreement.theirs)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
