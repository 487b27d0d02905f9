"""How a vendor's answers are compared with those that HAMi's code gave to the same questions.

The questions are recorded (``tests/vectors``); ``python -m tests.hami`` asks them. Nothing here is used otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hami_plugin.scheduler.engine.devices import Demand

Json = Mapping[str, Any]
"""A question or an answer, as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where we answer otherwise than HAMi, on purpose. ``id`` is a row of docs/differences.md.

    ``applies`` looks at the question alone and is narrow, so that it cannot hide another fault. ``right`` is asked
    only where the answers differ: question, our answer, HAMi's answer. It says what ours must satisfy, and that HAMi's
    is what the row says of it. ``excuses`` are the fields of the answer that may differ then; all others may not.
    """

    id: str
    applies: Callable[[Json], bool]
    right: Callable[[Json, Json, Json], bool]
    excuses: tuple[str, ...]


NO_PERCENTAGE = (0, 101)
"""Both mean "no percentage" to HAMi's shared loop."""


def _as_is(request: Json) -> Demand:
    percent = request["mempercentagereq"]
    return Demand(
        device_type=request["type"],
        count=request["nums"],
        memory=request["memreq"] or None,
        percent=None if percent in NO_PERCENTAGE else percent,
        cores=request["coresreq"],
    )


def _as_hami(demand: Demand, unset_percent: int) -> Json:
    return {
        "nums": demand.count,
        "type": demand.device_type,
        "memreq": demand.memory or 0,
        "mempercentagereq": unset_percent if demand.percent is None else demand.percent,
        "coresreq": demand.cores,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """A vendor's part in the comparison.

    ``unset_percent`` is what HAMi writes for "no percentage". ``demand`` and ``request`` translate HAMi's request and
    ours where that is not enough. ``settings`` are the vendor's settings that a question implies, spelt as in the
    file. ``answers`` serve kinds of questions that only this vendor has. ``said`` is given a question and our answer
    to ``fit``, and writes into that what HAMi notes down for its own later use. ``one_reason``: a refusal tells a
    single reason instead of one for each device, which is then for the differences to judge. ``remembered`` writes what
    a question says of HAMi's own memory to where our scheduler finds it: the devices, and the pods that have them.
    """

    differences: tuple[Difference, ...] = ()
    one_reason: bool = False
    unset_percent: int = 0
    demand: Callable[[Json], Demand] = _as_is
    request: Callable[[Demand, int], Json] = _as_hami
    settings: Callable[[Json], Json] = lambda _question: {}
    answers: Mapping[str, Callable[[Json], Json]] = field(default_factory=dict)
    said: Callable[[Json, Json], Json] = lambda _question, answer: answer
    remembered: Callable[[Json], Json] = lambda question: question


REQUEST = ("request",)
ADMISSION = ("err", "found", "limits", "requests", "env", "pod_annotations", "runtime_class")
"""Denied, or not: then there is nothing else in an answer."""
CHOICE = ("devices", "applied", "usage_after", "apply_error")
"""Which devices are granted, and what is booked of them."""
PLACED = (*CHOICE, "ok", "reason")
"""Whether any are granted."""
SCORE = ("score",)

Rule = tuple[Callable[[Json], bool], Callable[[Json, Json, Json], bool], tuple[str, ...]]
"""When a difference applies, what is right then, and which fields may differ."""


def differences(rules: Mapping[str, Rule]) -> tuple[Difference, ...]:
    """From a table: rules by the id of their row in docs/differences.md."""
    return tuple(
        Difference(id=name, applies=applies, right=right, excuses=excuses)
        for name, (applies, right, excuses) in rules.items()
    )


_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def amount(text: str) -> Fraction | None:
    """A quantity, read anew, so that the code that is asked does not judge itself; None for what is none."""
    found = re.fullmatch(r"([+-]?[0-9]*\.?[0-9]*)(?:([KMGTPE])i|([numkMGTPE]?)|[eE]([+-]?[0-9]{1,3}))", text)
    if not found or not any(map(str.isdigit, found[1])):
        return None
    binary, decimal, exponent = found[2], found[3], found[4]
    number = Fraction(found[1])
    if binary:
        return number * Fraction(1024 ** ("KMGTPE".index(binary) + 1))
    return number * Fraction(f"1e{int(exponent) if exponent else _SUFFIXES[decimal or '']}")


def whole_amount(text: str) -> int | None:
    """A quantity that is a whole number; None for any other."""
    number = amount(text)
    return None if number is None or number.denominator != 1 else int(number)


def no_request(_question: Json, ours: Json, theirs: Json) -> bool:
    """Nothing is asked for, where HAMi asks for something."""
    return not ours["request"]["nums"] and bool(theirs["request"]["nums"])


def asks_fit(question: Json, *words: str) -> bool:
    """Whether devices of one of these families are to be chosen."""
    return question["fn"] == "fit" and question["vendor"] in words


def pod_annotations(question: Json) -> Json:
    """The pod's."""
    return (question.get("pod") or {}).get("annotations") or {}


def granted(answer: Json) -> list[Json]:
    """The devices in an answer to ``fit``, over all families."""
    return [device for devices in answer["devices"].values() for device in devices]


def uuids(answer: Json) -> list[str]:
    """Of those devices."""
    return [device["uuid"] for device in granted(answer)]


def but_for(reason: str, *kinds: str) -> set[str]:
    """The counted reasons of a refusal (``3/4 CardTypeMismatch, …``) but those of these kinds."""
    return {part for part in reason.split(", ") if not part.endswith(kinds)}


def sound(question: Json, answer: Json) -> bool:
    """An answer to ``fit`` that takes nothing twice: as many devices as asked for, healthy, and none overbooked."""
    if not answer.get("ok"):
        return False
    devices = granted(answer)
    before = {device["id"]: device for device in question["devices"]}
    limits = (("used", "count"), ("usedmem", "totalmem"), ("usedcores", "totalcore"))
    return (
        len(devices) == question["request"]["nums"]
        and all(before[device["uuid"]].get("health") for device in devices)
        and all(
            after[used] <= max(before[after["id"]].get(total, 0), before[after["id"]].get(used, 0))
            for after in answer.get("usage_after", ())
            for used, total in limits
        )
    )
