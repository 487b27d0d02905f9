"""Differences from HAMi that concern no single vendor."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from hami_plugin.scheduler.engine.policy import ordered
from tests.hami import values
from tests.hami.parity import NO_PERCENTAGE, REQUEST, Json, differences, no_request, whole_amount

INT32_MAX = 2**31 - 1
UNITS = (1, 256, 512, 1024)
"""MiB in a unit of the vendors' memory resources."""
_NODE_TEXTS = ("encode_node", "marshal_node")
EXTRAS = ("custominfo", "devicevendor")
"""What HAMi leaves out of the entries that it writes."""
DIMENSIONS = (("slot", "used", "count"), ("core", "usedcores", "totalcore"), ("memory", "usedmem", "totalmem"))
"""What makes a device full: the weight's name, what is taken, and of how much."""


def _unordered(question: Json) -> bool:
    numbers = [info.get("index", 0) for info in question.get("infos") or ()]
    return question["fn"] in _NODE_TEXTS and numbers != sorted(numbers)


def _with_extras(question: Json) -> bool:
    return question["fn"] == "marshal_node" and any(
        info.get("custominfo") or info.get("devicevendor") for info in question.get("infos") or ()
    )


def _by_index_and_complete(question: Json, ours: Json, theirs: Json) -> bool:
    """HAMi's entries, by index, and with what it leaves out of them."""
    text = theirs.get("str", "")
    if not text.startswith("["):
        entries = sorted(text.removesuffix(":").split(":"), key=lambda entry: int(entry.split(",")[7]))
        return bool(ours.get("str") == "".join(f"{entry}:" for entry in entries))
    extras = {info["id"]: {key: info[key] for key in EXTRAS if info.get(key)} for info in question["infos"]}
    entries = [{**entry, **extras[entry["id"]]} for entry in json.loads(text)]
    return bool(_parsed(ours.get("str", "")) == sorted(entries, key=lambda entry: entry.get("index", 0)))


def _parsed(text: str) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _numbers(question: Json) -> Iterator[int]:
    """The amounts that a request names, as far as they are plain numbers. Limits outrank requests."""
    container = question["container"]
    for name, text in {**(container.get("requests") or {}), **(container.get("limits") or {})}.items():
        if "/" in name and re.fullmatch(r"-?[0-9]+", text):
            yield int(text)


def _beyond_32_bits(question: Json) -> bool:
    return question["fn"] == "request" and any(abs(number) > INT32_MAX for number in _numbers(question))


def _cores(question: Json) -> int | None:
    """How many cores a container asks for."""
    container = question["container"]
    amounts = {**(container.get("requests") or {}), **(container.get("limits") or {})}
    texts = [text for name, text in amounts.items() if re.search(r"/.*cores?$", name, re.IGNORECASE)]
    return whole_amount(texts[0]) if len(texts) == 1 else None


def _negative_cores(question: Json) -> bool:
    return question["fn"] == "request" and (_cores(question) or 0) < 0


def _booked_as_they_are(question: Json, ours: Json, theirs: Json) -> bool:
    """No request, where HAMi's has these cores, or each card's part of them."""
    cores, count = _cores(question) or 0, theirs["request"]["nums"]
    return no_request(question, ours, theirs) and theirs["request"]["coresreq"] in (cores, int(cores / max(1, count)))


def _not_what_is_left(question: Json, ours: Json, theirs: Json) -> bool:
    """No request, where a part of HAMi's is what 32 bits leave of an amount, or of its share for each device."""
    numbers = [number for number in _numbers(question) if abs(number) > INT32_MAX]
    left = [(number * unit + 2**31) % 2**32 - 2**31 for number in numbers for unit in UNITS]
    shares = {int(value / each) for value in left for each in (1, theirs["request"]["nums"] or 1)} - {0}
    return no_request(question, ours, theirs) and not shares.isdisjoint(theirs["request"].values())


def _lacks_something(device: Json) -> bool:
    return any(not device.get(total) for _, _, total in DIMENSIONS)


def _some_lack(question: Json) -> bool:
    return (
        question["fn"] == "sort_devices"
        and "requests_by_type" in question
        and any(device.get("count") and _lacks_something(device) for device in question["devices"])
    )


def _scored_by_what_there_is(question: Json, ours: Json, theirs: Json) -> bool:
    """As for HAMi, but that devices which lack something are scored by what they have; and in the order of that."""
    his = {item["id"]: item.get("score", 0) for item in theirs["order"]}
    scores = {item["id"]: item.get("score", 0) for item in ours["order"]}
    lacking = {device["id"]: _full(device, question) for device in question["devices"] if _lacks_something(device)}
    states = [values.state(device) for device in question["devices"]]
    if len(ours["order"]) != len(states) or scores.keys() != his.keys():
        return False
    words = [word.strip() for word in question["policy"].split(",")]
    order = ordered(states, words, lambda state: scores[state.uuid], numa_first=question["numa_bind"])
    return (
        _alike(ours["node_default_score"], theirs["node_default_score"])
        and all(_alike(score, lacking.get(uuid, his[uuid])) for uuid, score in scores.items())
        and list(scores) == [state.uuid for state in order]
    )


def _full(device: Json, question: Json) -> float:
    """10 for each dimension that the device has, if all of it is taken."""
    weights = dict(part.split("=") for part in (question.get("weights") or "").split(",") if part)
    types = {one["type"] for one in question["devices"]}
    requests = [one for one in question["requests_by_type"].values() if one["type"] in types]
    asked = {
        "slot": len(requests),
        "core": sum(one["coresreq"] for one in requests),
        "memory": sum(_memory(one, device.get("totalmem", 0)) for one in requests),
    }
    parts = (
        10.0 * int(weights.get(name, 1)) * (device.get(used, 0) + asked[name]) / device[total]
        for name, used, total in DIMENSIONS
        if device.get("count") and device.get(total)
    )
    return float(sum(parts))


def _memory(request: Json, total: int) -> int:
    percent = request["mempercentagereq"]
    return int(request["memreq"] if percent in NO_PERCENTAGE else total * percent // 100)


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-3)


DIFFERENCES = differences(
    {
        "D-002": (_unordered, _by_index_and_complete, ("str",)),
        "D-025": (_with_extras, _by_index_and_complete, ("str",)),
        "D-100": (_beyond_32_bits, _not_what_is_left, REQUEST),
        "D-101": (_negative_cores, _booked_as_they_are, REQUEST),
        "D-102": (_some_lack, _scored_by_what_there_is, ("order",)),
    }
)
