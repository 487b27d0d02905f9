"""Ask every question of a file, and sort the answers: equal, different on purpose, or different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hami_plugin.conformance import replay
from hami_plugin.conformance.answers import DECISION, answer, consistent
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.compare import Disagreement, compared, excused
from hami_plugin.conformance.differences import DIFFERENCES
from hami_plugin.conformance.questions import Case
from hami_plugin.errors import HamiError
from hami_plugin.parity import Difference, Json


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
        ids = replay.explained(
            case.question,
            ours,
            theirs,
            catalog,
            known=known,
            answer=lambda asked: answer(asked, catalog),
            consistent=lambda asked, told: consistent(asked, told, catalog),
        )
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
