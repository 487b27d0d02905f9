"""Whether two answers say the same: absent and zero are one, numbers within 32-bit floats, errors by being one.

A refusal's partial list of devices is no answer, and is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hami_plugin.model.views import exact
from tests.hami import requests
from tests.hami.parity import Difference, Json

ERROR = "an error"

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What a rule raises over an answer that lacks what it looks at, or has something else there: nothing explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One field in which two answers differ."""

    field: str
    ours: Any
    theirs: Any


def compared(question: Json, ours: Json, theirs: Json) -> tuple[Disagreement, ...]:
    """Every field that differs, the outermost first."""
    return tuple(_different("", _plain(question, ours), _plain(question, theirs)))


def excused(difference: Difference, question: Json, ours: Json, theirs: Json) -> bool:
    """Whether a difference is why these answers differ: it applies, ours is right by it, and nothing else differs.

    What HAMi reads out of a container's resources is known of every family: nothing excuses another request than that.
    Where HAMi's answer is known in parts only, these are compared. An answer that the rule cannot read is not excused.
    """
    try:
        if not (difference.applies(question) and difference.right(question, ours, theirs)):
            return False
        if question["fn"] == "request" and compared(question, requests.answer(question), theirs):
            return False
    except UNREADABLE:
        return False
    known = {field: value for field, value in ours.items() if field in theirs or field == "err"}
    return all(_within(one.field, difference.excuses) for one in compared(question, known, theirs))


def _within(field: str, excuses: Iterable[str]) -> bool:
    return any(field == one or field.startswith((f"{one}.", f"{one}[")) for one in excuses)


def _plain(question: Json, answer: Json) -> Any:
    """An answer without what does not matter."""
    if answer.get("err"):
        return {"err": ERROR}
    said = dict(answer)
    if question.get("fn") == "schedule":
        return _without_zeros(said | {"scores": [_plain_score(one) for one in said.get("scores") or ()]})
    if question.get("fn") == "fit" and not said.get("ok"):
        said.pop("devices", None)
    if "request" in said and said["request"]["nums"] <= 0:
        said["request"] = {}
    for place in ("limits", "requests"):
        said[place] = {name: _canonical(text) for name, text in (said.get(place) or {}).items()}
    return _without_zeros(said)


def _plain_score(scored: Json) -> Any:
    """A node's part in a decision. Lists under a word that has no device at all are padding."""
    given = {device_type: pieces for device_type, pieces in scored["devices"].items() if any(pieces)}
    return {**scored, "devices": given}


def _canonical(text: str) -> str | int:
    """A quantity as a number, where it is a whole one."""
    try:
        value = exact(text)
        return value if value is not None else f"{exact_thousandths(text)}m"
    except ValueError:
        return text


def exact_thousandths(text: str) -> int | str:
    """A quantity in thousandths, as Kubernetes writes fractions."""
    thousandths = exact(text[:-1]) if text.endswith("m") else exact(f"{text}k")
    return text if thousandths is None else thousandths


def _without_zeros(value: Any) -> Any:
    match value:
        case Mapping():
            plain = {key: _without_zeros(item) for key, item in value.items()}
            return {key: item for key, item in plain.items() if item not in (None, 0, "", False, {}, [])}
        case list() | tuple():
            return [_without_zeros(item) for item in value]
        case _:
            return value


def _different(field: str, ours: Any, theirs: Any) -> Iterator[Disagreement]:
    match ours, theirs:
        case dict(), dict():
            for key in sorted({*ours, *theirs}):
                yield from _different(f"{field}.{key}".lstrip("."), ours.get(key), theirs.get(key))
        case list(), list() if len(ours) == len(theirs):
            for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from _different(f"{field}[{position}]", one, other)
        case ((int() | float() | None), (int() | float() | None)) if _close(ours or 0, theirs or 0):
            return
        case _ if ours != theirs:
            yield Disagreement(field=field, ours=ours, theirs=theirs)


def _close(one: float, other: float) -> bool:
    return one == other or (
        isinstance(one, float) | isinstance(other, float) and math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-4)
    )
