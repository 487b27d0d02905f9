"""The cases of HAMi's own unit tests about MetaX GPUs, asked of what does the same here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hami_plugin.errors import WireError
from hami_plugin.scheduler.engine.devices import Candidate, Charge, Context, Demand
from hami_plugin.scheduler.engine.policy import Decision, Misfit, Select
from tests.hami import values
from tests.hami.answers import ABOUT_A_FAMILY
from tests.hami.catalog import Known
from tests.hami.compare import compared
from tests.hami.vendors.metax import parity
from tests.support.hami import FOLDER, asks
from vendors.metax import rules, zones
from vendors.metax.rules import families
from vendors.metax.settings import MetaxSettings

FILES = sorted(path.stem for path in FOLDER.glob("metax_*.json"))
PARITY = parity()
WHOLE, SHARED = (Known(vendor="metax", family=family, parity=PARITY) for family in families(MetaxSettings()))
NAMES = {"custom_info": "custominfo", "pod_infos": "pods", "mem_percentagereq": "mempercentagereq"}
Case = Mapping[str, Any]

EXCUSED = {
    "JitteryQosCache.Sync": "what HAMi's process remembers between decisions is given with the question here",
    "JitteryQosCache.Add": "what HAMi's process remembers between decisions is given with the question here",
    "JitteryQosCache.Get": "what HAMi's process remembers between decisions is given with the question here",
    "addJitteryQos": "what HAMi's process remembers between decisions is given with the question here",
}


def renamed(value: Any) -> Any:
    """The same case as in the vectors' words, without the pod that HAMi carries along in each device."""
    match value:
        case {"as_int64_ok": False}:
            return "1.5Gi"
        case dict():
            return {NAMES.get(key, key): renamed(item) for key, item in value.items() if key != "Pod.Annotations"}
        case list():
            return [renamed(item) for item in value]
        case _:
            return value


def as_asked(known: Known, question: Case, theirs: Case) -> None:
    """The same answer, or a documented difference."""
    question = {"vendor": known.family.resources.device_type, **question}
    ours = ABOUT_A_FAMILY[question["fn"]](question, known)
    ours = {key: value for key, value in ours.items() if key in theirs or key == "err"}
    applying = [one for one in PARITY.differences if one.applies(question)]
    assert not compared(question, ours, theirs) or any(one.right(question, ours, theirs) for one in applying)


def fits(known: Known, case: Case) -> None:
    question, expected = renamed(case["input"]), renamed(case["expected"])
    cache = ((question.get("backend") or {}).get("jq_cache") or {}).get("cache") or {}
    unset = {"memreq": 0, "mempercentagereq": 0, "coresreq": 0}
    question |= {"fn": "fit", "request": {**unset, **question["request"]}, "metax_jq": cache}
    theirs = {"ok": expected["fit"], "devices": expected["devices"], "reason": expected["reason"]}
    as_asked(known, question, theirs)


def requests(known: Known, case: Case) -> None:
    as_asked(known, {**renamed(case["input"]), "fn": "request"}, renamed(case["expected"]))


def admits(known: Known, case: Case) -> None:
    question, expected = case["input"], case["expected"]
    if expected["error"]:
        as_asked(known, {**question, "fn": "mutate"}, {"err": expected["error"]})
        return
    pod = (expected.get("after") or {}).get("pod") or question["pod"]
    theirs = {"found": expected["found"], "pod_annotations": pod.get("annotations") or {}}
    as_asked(known, {**question, "fn": "mutate"}, theirs)


def scores(known: Known, case: Case) -> None:
    question = {**renamed(case["input"]), "fn": "score_node", "pod": carried(case)}
    as_asked(known, question, {"score": case["expected"]["result"]})


def node_has(known: Known, case: Case) -> None:
    expected = case["expected"]["devices"] or []
    try:
        found = known.family.rules.node_devices(values.node(case["input"]["node"]))
    except WireError:
        found = ()
    assert [info.id for info in found] == [device.get("uuid") or device["id"] for device in expected]


def app_class(_known: Known, case: Case) -> None:
    question = renamed(case["input"])
    pod = values.pod({"annotations": {rules.APP_CLASS: question["requestClass"]}})
    context = Context(demand=Demand(device_type=rules.SHARED_TYPE, count=1), pod=pod)
    assert (rules.class_fits(values.state(question["dev"]), context) is None) == case["expected"]["result"]


def qos(_known: Known, case: Case) -> None:
    question = renamed(case["input"])
    context = Context(
        demand=Demand(device_type=rules.SHARED_TYPE, count=1, cores=question["request"].get("coresreq", 0)),
        pod=values.pod({"annotations": {rules.QOS: question["reqQos"]}}),
    )
    (device,) = PARITY.remembered(
        {"devices": [question["usage"]], "metax_jq": question["backend"]["jq_cache"]["cache"]}
    )["devices"]
    assert (rules.qos_fits(values.state(device), context) is None) == case["expected"]["result"]


def aware(known: Known, case: Case) -> None:
    """Of a pair of linked cards one is taken: that scores only where topology counts."""
    pieces = [[{"uuid": "a", **device} for device in piece] for piece in case["input"]["pod_devices"]]
    pair = [{"id": name, "custominfo": {"LinkZone": 1}} for name in ("a", "b")]
    question = {"pod_devices": pieces, "previous": pair, "pod": carried(case)}
    score = ABOUT_A_FAMILY["score_node"](question, known)["score"]
    assert (score != 0) == case["expected"]["result"]


def choice(select: Select) -> Callable[[Known, Case], None]:
    def check(_known: Known, case: Case) -> None:
        states = [values.state(item) for item in renamed(case["input"]["candidateDevices"])]
        candidates = [Candidate(state=state, charge=Charge()) for state in states]
        context = Context(
            demand=Demand(device_type=rules.SHARED_TYPE, count=case["input"]["require"]), pod=values.pod(None)
        )
        possible = [one["result"] or () for one in case.get("expected_any_of") or [case["expected"]]]
        found = select(candidates, context)
        if isinstance(found, Misfit):
            assert len(states) < context.demand.count
        else:
            assert {one.uuid for one in found} in [{device["id"] for device in one} for one in possible]

    return check


def decided(score: Callable[[Decision], float]) -> Callable[[Known, Case], None]:
    def check(_known: Known, case: Case) -> None:
        question = renamed(case["input"])
        before = [values.state(item) for item in question["previous"]]
        pieces = values.pieces(question["pod_devices"])
        decision = Decision(node=values.node(None), pod=values.pod(None), pieces=pieces, before=before)
        assert score(decision) == case["expected"]["result"]

    return check


def carried(case: Case) -> Case:
    """The pod of a decision, as HAMi carries it along in the first of its devices."""
    notes = [device.get("custom_info") or {} for piece in case["input"]["pod_devices"] for device in piece]
    return {"annotations": next((note["Pod.Annotations"] for note in notes if "Pod.Annotations" in note), {})}


def linked(case: Case) -> int:
    """A pair, or a list."""
    devices = case["input"]["backend"]
    every = devices if isinstance(devices, list) else [devices, case["input"]["to"]]
    return zones.links([(device["uuid"], device.get("link_zone", 0)) for device in every])


CHECKS: Mapping[str, Callable[[Known, Case], None]] = {
    "Fit": fits,
    "GenerateResourceRequests": requests,
    "MutateAdmission": admits,
    "ScoreNode": scores,
    "GetNodeDevices": node_has,
    "getMetaxSDevices": node_has,
    "checkAppClass": app_class,
    "checkDeviceQos": qos,
    "topologyAwareEnable": aware,
    "prioritizeExclusiveDevices": choice(zones.within_zone),
    "prioritizeOnlineDevices": choice(rules.fewest_online_first),
    "scoreExclusiveDevices": decided(zones.linked_score),
    "scoreOnlineDevices": decided(rules.disturbance_score),
}
PLAIN: Mapping[str, Callable[[Case], object]] = {
    "parseMetaxAnnos": lambda case: rules.forecast(case["input"]["annos"], case["input"]["index"]) or 0,
    "score": linked,
    "Score": linked,
    "convertMetaxSDeviceToHAMIDevice": lambda case: read(case["input"]["metaxSDevices"]),
    "convertHAMIPodDeviceToMetaxPodDevice": lambda case: told(case["input"]["hamiPodDevices"]),
}


def read(devices: list[Case]) -> object:
    """The agent's list, decoded."""
    camel = {"total_v_ram": "totalVRam", "total_dev_count": "totalDevCount", "total_compute": "totalCompute"}
    camel |= {"link_zone": "linkZone", "qos_policy": "qosPolicy"}
    text = json.dumps([{camel.get(key, key): value for key, value in device.items()} for device in devices])
    found: list[Case] = [
        {
            "id": info.id,
            "index": info.index,
            "count": info.count,
            "devmem": info.devmem,
            "devcore": info.devcore,
            "type": info.type,
            "numa": info.numa,
            "health": info.health,
            "device_vendor": info.vendor,
            "custom_info": info.custom,
            "mig_template": [],
        }
        for info in rules.decode(text)
    ]
    return [{key: value for key, value in info.items() if value != 0 or key == "health"} for info in found]


def told(pieces: list[list[Case]]) -> object:
    """A decision, as the agent reads it."""
    family = SHARED.family
    patch = family.rules.patch(family, values.pod(None), {rules.SHARED_TYPE: values.pieces(pieces)})
    return json.loads(patch[rules.ALLOCATED].replace("vRam", "v_ram"))


@asks(FILES, *CHECKS, *PLAIN)
def test_hamis_own_case_has_the_same_answer(case: Case) -> None:
    kind = case["fn"].split(".")[-1]
    if kind in PLAIN:
        assert PLAIN[kind](case) == case["expected"]["result"]
    else:
        CHECKS[kind](WHOLE if "MetaxDevices" in case["fn"] else SHARED, case)
