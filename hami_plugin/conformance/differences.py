"""Differences from HAMi that concern no single vendor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hami_plugin.parity import Difference, Json

INT32_MAX = 2**31 - 1
_NODE_TEXTS = ("encode_node", "marshal_node")
_SCORED = ("count", "totalmem", "totalcore")


def _unordered(question: Json) -> bool:
    numbers = [info.get("index", 0) for info in question.get("infos") or ()]
    return question["fn"] in _NODE_TEXTS and numbers != sorted(numbers)


def _with_extras(question: Json) -> bool:
    return question["fn"] == "marshal_node" and any(
        info.get("custominfo") or info.get("devicevendor") for info in question.get("infos") or ()
    )


def _same_devices(_question: Json, ours: Json, theirs: Json) -> bool:
    return "str" in ours and _entries(ours["str"]) == _entries(theirs.get("str", ""))


def _entries(text: str) -> Any:
    """The devices of a register text, in any order, without what HAMi leaves out."""
    if not text.startswith("["):
        return sorted(text.split(":"))
    extras = ("custominfo", "devicevendor")
    return sorted(json.dumps({k: v for k, v in item.items() if k not in extras}) for item in json.loads(text))


def _numbers(question: Json) -> Iterator[int]:
    """The amounts that a request names, as far as they are plain numbers. Limits outrank requests."""
    container = question["container"]
    for name, text in {**(container.get("requests") or {}), **(container.get("limits") or {})}.items():
        if "/" in name and re.fullmatch(r"-?[0-9]+", text):
            yield int(text)


def _beyond_32_bits(question: Json) -> bool:
    return question["fn"] == "request" and any(abs(number) > INT32_MAX for number in _numbers(question))


def _negative(question: Json) -> bool:
    return question["fn"] == "request" and any(number < 0 for number in _numbers(question))


def _no_request(_question: Json, ours: Json, _theirs: Json) -> bool:
    return not ours["request"]["nums"]


def _lacks_something(device: Json) -> bool:
    return any(not device.get(name) for name in _SCORED)


def _some_lack(question: Json) -> bool:
    return (
        question["fn"] == "sort_devices"
        and "requests_by_type" in question
        and any(device.get("count") and _lacks_something(device) for device in question["devices"])
    )


def _others_unchanged(question: Json, ours: Json, theirs: Json) -> bool:
    """Devices that have everything stand and score as for HAMi; the others are scored by what they have."""
    complete = {device["id"] for device in question["devices"] if not _lacks_something(device)}

    def of(answer: Json) -> list[Json]:
        return [item for item in answer["order"] if item["id"] in complete]

    same = all(
        mine["id"] == his["id"] and abs(mine["score"] - his["score"]) < 1e-3
        for mine, his in zip(of(ours), of(theirs), strict=True)
    )
    return same and {item["id"] for item in ours["order"]} == {item["id"] for item in theirs["order"]}


DIFFERENCES: tuple[Difference, ...] = (
    Difference(id="D-002", applies=_unordered, right=_same_devices),
    Difference(id="D-025", applies=_with_extras, right=_same_devices),
    Difference(id="D-100", applies=_beyond_32_bits, right=_no_request),
    Difference(id="D-101", applies=_negative, right=_no_request),
    Difference(id="D-102", applies=_some_lack, right=_others_unchanged),
)
