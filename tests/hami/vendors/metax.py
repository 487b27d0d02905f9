"""Where our answers about MetaX GPUs differ from HAMi's on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from hami_plugin.scheduler.engine.devices import INT32_MAX, Reason
from hami_plugin.scheduler.engine.policy import on_the_pods_device
from tests.hami import fits
from tests.hami.fits import counted
from tests.hami.parity import (
    CHOICE,
    PLACED,
    REQUEST,
    SCORE,
    Json,
    Parity,
    asks_fit,
    differences,
    pod_annotations,
    sound,
    uuids,
    whole_amount,
)
from vendors.metax import rules
from vendors.metax.rules import APP_CLASS, OFFLINE, ONLINE, QOS
from vendors.metax.settings import MetaxSettings

CLASSES = (ONLINE, OFFLINE)
MAX_PARSED = 90 * 2**40
"""Bytes. HAMi reads some larger quantities as none."""


def _has_more(question: Json, device_type: str) -> bool:
    return any((question.get("allocated") or {}).get(device_type) or ())


def _second_whole(question: Json) -> bool:
    return asks_fit(question, rules.WHOLE_TYPE) and _has_more(question, rules.WHOLE_TYPE)


def _another_card(question: Json, ours: Json, theirs: Json) -> bool:
    """A sound grant where HAMi takes the pod's card or none; or too few are left, and HAMi's rule forbids some."""
    if ours["ok"]:
        return sound(question, ours) and _all_on_one(question, theirs)
    if not _all_on_one(question, theirs):
        return False
    mine, his = dict(counted(ours["reason"])), dict(counted(theirs["reason"]))
    his[Reason.TOO_FEW] = his.get(Reason.TOO_FEW, 0) + his.pop(Reason.CUSTOM_RULE, 0)
    return not theirs["ok"] and mine == his and mine[Reason.TOO_FEW] < question["request"]["nums"]


def _all_on_one(question: Json, theirs: Json) -> bool:
    policy = rules.whole_gpus(MetaxSettings()).rules.policy
    assert policy
    one_card = replace(policy, checks=(*policy.checks, on_the_pods_device))
    return fits.answered_by(question, theirs, one_card, Parity())


def _not_foretold(question: Json) -> bool:
    """The node does not say what so many cards are worth."""
    if (
        question["fn"] != "score_node"
        or question["vendor"] != rules.WHOLE_TYPE
        or question["policy"] not in rules.FORECASTS
    ):
        return False
    text = ((question.get("node") or {}).get("annotations") or {}).get(rules.FORECASTS[question["policy"]], "")
    return rules.forecast(text, sum(map(len, question["pod_devices"]))) is None


def _last_place(question: Json, ours: Json, theirs: Json) -> bool:
    """By HAMi the first place: what is not said is a loss of 0, or a score of 0."""
    worst, best = (0, 2000) if question["policy"] == "binpack" else (2000, 0)
    return bool(ours["score"] == worst and round(theirs["score"], 2) == best)


def _odd_amount(question: Json) -> bool:
    """Memory or cores that HAMi cannot read, or less than 1 MiB of memory: for HAMi the whole card."""
    if question["fn"] != "request" or question["vendor"] != rules.SHARED_TYPE:
        return False
    limits, names = question["container"].get("limits") or {}, MetaxSettings()
    memory, cores = limits.get(names.memory, "0"), limits.get(names.cores, "0")
    number = whole_amount(memory)
    if number is None or whole_amount(cores) is None or "." in memory + cores or number > MAX_PARSED:
        return True
    suffixed = not memory.lstrip("+-").isdecimal() or number % 1000 == 0
    return suffixed and 0 < abs(number) < rules.MIB


def _refused_or_meant(question: Json, ours: Json, theirs: Json) -> bool:
    """Exactly the memory and the cores that were written; no request where they are not whole, or none at all."""
    limits, names = question["container"]["limits"], MetaxSettings()
    memory, number, cores = (limits.get(names.memory, "0"), *_exact(limits, names.memory, names.cores))
    in_bytes = number is not None and (number % 1000 == 0 or not memory.lstrip("+-").isdecimal())
    mib = None if number is None else number // rules.MIB if in_bytes else number * 1024
    if mib is None or cores is None or not (0 < mib <= INT32_MAX or number == 0):
        return not ours["request"]["nums"]
    written = {"coresreq": cores} if names.cores in limits else {}
    meant = {**theirs["request"], **written, "memreq": mib, "mempercentagereq": 0 if mib else 100}
    return bool(ours["request"] == meant)


def _exact(limits: Json, *names: str) -> list[int | None]:
    return [whole_amount(limits.get(name, "0")) for name in names]


def _second_of_a_class(question: Json) -> bool:
    """The pod has an app class, and another of its containers has been served."""
    in_class = pod_annotations(question).get(APP_CLASS) in CLASSES
    return in_class and asks_fit(question, rules.SHARED_TYPE) and _has_more(question, rules.SHARED_TYPE)


def _among_its_like(question: Json, ours: Json, theirs: Json) -> bool:
    """A sound grant on cards whose tenants the pod may join; or none on both sides, for the same reasons.

    HAMi's is what we say to a pod that has no card yet.
    """
    policy = rules.shared_gpus(MetaxSettings(), clock=time.time_ns).rules.policy
    assert policy
    if not fits.answered_by(_with_classes({**question, "allocated": {}}), theirs, policy, Parity()):
        return False
    if not ours["ok"]:
        return not theirs["ok"] and ours["reason"] == theirs["reason"]
    strangers = {None, ONLINE} if pod_annotations(question)[APP_CLASS] == OFFLINE else {None}
    tenants = {device["id"]: device.get("pods") or () for device in question["devices"]}
    there = {(pod.get("annotations") or {}).get(APP_CLASS) for uuid in uuids(ours) for pod in tenants[uuid]}
    return sound(question, ours) and not there & strangers


def _several_zones(question: Json) -> bool:
    """Whole cards for a pod without app class, on a node with several zones."""
    whole = asks_fit(question, rules.SHARED_TYPE) and question["request"]["coresreq"] == 100
    return whole and APP_CLASS not in pod_annotations(question) and len({z for _, z in _zones(question) if z > 0}) > 1


def _linked_alike(question: Json, ours: Json, theirs: Json) -> bool:
    """Both grant, with as many links within the grant."""
    zones = dict(_zones(question))
    return bool(theirs["ok"]) and sound(question, ours) and _pairs(ours, zones) == _pairs(theirs, zones)


def _zones(question: Json) -> Iterator[tuple[str, int]]:
    for device in question["devices"]:
        yield device["id"], (device.get("custominfo") or {}).get("LinkZone", 0)


def _pairs(answer: Json, zones: dict[str, int]) -> int:
    of = [zones[uuid] for uuid in uuids(answer)]
    return sum(one == other > 0 for one, other in combinations(of, 2))


_RULES = {
    "D-120": (_second_whole, _another_card, PLACED),
    "D-121": (_not_foretold, _last_place, SCORE),
    "D-122": (_odd_amount, _refused_or_meant, REQUEST),
    "D-123": (_second_of_a_class, _among_its_like, PLACED),
    "D-124": (_several_zones, _linked_alike, CHOICE),
}


def _with_classes(question: Json) -> Json:
    """HAMi remembers which quality of service it last gave a card (``metax_jq``). So does whoever knows its pods: the
    last of them is one of that quality.
    """
    given = question.get("metax_jq")
    if not given:
        return question
    return {**question, "devices": [_given(device, given) for device in question["devices"]]}


def _given(device: Json, given: Json) -> Json:
    if device["id"] not in given:
        return device
    tenant = {"annotations": {QOS: given[device["id"]]}}
    return {**device, "pods": [*(device.get("pods") or ()), tenant]}


def parity() -> Parity:
    """MetaX's part in the comparison."""
    return Parity(differences=differences(_RULES), remembered=_with_classes)
