"""How our answers about NPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections import Counter

from hami_plugin.scheduler.engine.devices import INT32_MAX
from tests.hami import fits
from tests.hami.parity import (
    ADMISSION,
    CHOICE,
    PLACED,
    Json,
    Parity,
    amount,
    asks_fit,
    differences,
    granted,
    pod_annotations,
    sound,
    uuids,
)
from vendors.ascend.rules import MODE, NETWORKED, SOFT, families, network_id
from vendors.ascend.settings import CHIPS, MODULES, AscendSettings


def _networks(question: Json) -> list[object]:
    """What each device says of its network; None for one that says nothing."""
    return [(device.get("custominfo") or {}).get("NetworkID") for device in question["devices"]]


def _groups(question: Json, answer: Json) -> list[int]:
    """How many of the NPUs granted are in each module (910C), or in each network."""
    of = {
        device["id"]: device["index"] // 2 if question["vendor"] == MODULES else network_id(device["custominfo"])
        for device in question["devices"]
    }
    return sorted(Counter(of[uuid] for uuid in uuids(answer)).values())


def _several_groups(question: Json) -> bool:
    """Several NPUs are wanted of modules, or of networks with numbers."""
    if not asks_fit(question, *CHIPS) or question["request"]["nums"] < 2:
        return False
    if question["vendor"] == MODULES:
        return True
    numbered = all(isinstance(number, (int, float)) for number in _networks(question))
    return question["vendor"].startswith(NETWORKED) and numbered


def _grouped_alike(question: Json, ours: Json, theirs: Json) -> bool:
    """Both grant, of groups of the same sizes, with the same bill for each NPU."""
    if not (theirs["ok"] and sound(_in_percent(question), ours)):
        return False
    bills = [[(one.get("usedmem", 0), one.get("usedcores", 0)) for one in granted(answer)] for answer in (ours, theirs)]
    return sorted(bills[0]) == sorted(bills[1]) and _groups(question, ours) == _groups(question, theirs)


def _in_percent(question: Json) -> Json:
    """In hami-core mode cores are percent, whatever number of AI cores the NPU has."""
    if pod_annotations(question).get(MODE) != SOFT:
        return question
    return {**question, "devices": [{**device, "totalcore": 100} for device in question["devices"]]}


def _other_chips(question: Json) -> bool:
    """Among the devices is a chip whose word only contains the one that is asked for."""
    return asks_fit(question, *CHIPS) and any(
        question["vendor"] in device.get("type", "") != question["vendor"] for device in question["devices"]
    )


def _of_the_chip(question: Json, ours: Json, theirs: Json) -> bool:
    """A sound grant of that chip alone; or none, because of a chip's type. HAMi takes all of them for that chip."""
    device_type = question["vendor"]
    alike = [
        {**one, "type": device_type if device_type in one.get("type", "") else one["type"]}
        for one in question["devices"]
    ]
    family = next(family for family in families(AscendSettings()) if family.resources.device_type == device_type)
    assert family.rules.policy
    if not fits.answered_by({**question, "devices": alike}, theirs, family.rules.policy, Parity()):
        return False
    if not ours["ok"]:
        return "CardTypeMismatch" in ours["reason"]
    right = {device["id"] for device in question["devices"] if device.get("type") == question["vendor"]}
    return sound(_in_percent(question), ours) and set(uuids(ours)) <= right


def _unnumbered_networks(question: Json) -> bool:
    """Several NPUs are wanted, and some name their network otherwise than by a number."""
    named = [one for one in _networks(question) if one is not None] if asks_fit(question, *CHIPS) else []
    return bool(named) and question["request"]["nums"] > 1 and any(not isinstance(one, (int, float)) for one in named)


def _all_of_them(question: Json, ours: Json, theirs: Json) -> bool:
    return (
        bool(theirs["ok"]) and len(granted(theirs)) < question["request"]["nums"] and sound(_in_percent(question), ours)
    )


def _beyond_any_request(question: Json) -> bool:
    """In hami-core mode more memory is asked for than a request can say."""
    if question["fn"] != "mutate" or question["vendor"] not in CHIPS:
        return False
    soft = pod_annotations(question).get(MODE) == SOFT
    memory = (question["container"].get("limits") or {}).get(f"huawei.com/{question['vendor']}-memory", "0")
    return soft and (amount(memory) or 0) > INT32_MAX


def _denied(_question: Json, ours: Json, theirs: Json) -> bool:
    return bool(ours.get("err")) and not theirs.get("err")


RULES = {
    "D-170": (_several_groups, _grouped_alike, CHOICE),
    "D-171": (_other_chips, _of_the_chip, PLACED),
    "D-172": (_unnumbered_networks, _all_of_them, CHOICE),
    "D-173": (_beyond_any_request, _denied, ADMISSION),
}
"""When a difference applies, what is right then, and which fields may differ."""


def parity() -> Parity:
    """Ascend's part in the comparison."""
    return Parity(differences=differences(RULES))
