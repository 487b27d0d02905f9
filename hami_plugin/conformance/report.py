"""What a comparison showed, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hami_plugin.conformance.run import Outcome, Unexplained

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
