"""Our answers to recorded questions, in the recorder's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from hami_plugin.errors import HamiError, WireError
from hami_plugin.protocol.nodes import DeviceInfo, decode_json, decode_legacy, encode_json, encode_legacy
from hami_plugin.protocol.pods import decode_devices, encode_devices
from hami_plugin.scheduler.engine.devices import Demand, Denied, Invalid, effective_grants, sum_grants
from hami_plugin.scheduler.engine.policy import (
    WEIGHTS_KEY,
    Decision,
    Policy,
    Ranking,
    fullness,
    ordered,
    score,
    weights,
)
from tests.hami import decisions, fits, values
from tests.hami.catalog import Catalog, Known
from tests.hami.decisions import sound_decision
from tests.hami.parity import Json, Parity
from vendors.nvidia.rules import MigAllocation, decode_mig, encode_mig


def _or_error(answer: Callable[[Json], Json]) -> Callable[[Json], Json]:
    def guarded(question: Json) -> Json:
        try:
            return answer(question)
        except WireError as error:
            return {"err": str(error)}

    return guarded


def info(item: Json) -> DeviceInfo:
    """A recorded device of a node's annotation."""
    return DeviceInfo(
        id=item["id"],
        index=item.get("index", 0),
        count=item.get("count", 0),
        devmem=item.get("devmem", 0),
        devcore=item.get("devcore", 0),
        type=item.get("type", ""),
        numa=item.get("numa", 0),
        mode=item.get("mode", ""),
        health=item.get("health", False),
        mig_profiles=values.profiles(item.get("migProfiles")),
        vendor=item.get("device_vendor", item.get("devicevendor", "")),
        custom=_custom(item),
    )


def _custom(item: Json) -> Json | None:
    notes: Json | None = item.get("custominfo", item.get("custom_info"))
    return notes


def infos(question: Json) -> list[DeviceInfo]:
    """The recorded devices that a question is about, as either recorder names them."""
    return [info(item) for item in question.get("infos") or question.get("dlist") or ()]


def _read(found: Sequence[DeviceInfo]) -> Json:
    return {"infos": [member for one in found for member in json.loads(encode_json([one]))]}


def allocations(question: Json) -> list[MigAllocation]:
    """The instances of GPUs that a pod was decided, in the order of its containers."""
    return [
        MigAllocation(
            container=position,
            device=number,
            uuid=device["uuid"],
            profile=notes.get("migProfile", ""),
            start=(notes.get("migPlacement") or {}).get("start", 0),
            size=(notes.get("migPlacement") or {}).get("size", 0),
        )
        for position, devices in enumerate(question["pod_devices"])
        for number, device in enumerate(devices)
        for notes in [_custom(device) or {}]
    ]


def _encode_mig(question: Json) -> Json:
    found = [allocation for allocation in allocations(question) if allocation.complete]
    return {"ok": bool(found), "str": encode_mig(found)}


def _decode_mig(question: Json) -> Json:
    found = decode_mig(question["str"])
    return {"allocations": json.loads(encode_mig(found)) if found else []}


CODECS: Mapping[str, Callable[[Json], Json]] = {
    "encode_node": _or_error(lambda question: {"str": encode_legacy(infos(question))}),
    "marshal_node": _or_error(lambda question: {"str": encode_json(infos(question))}),
    "decode_node": _or_error(lambda question: _read(decode_legacy(question["str"]))),
    "unmarshal_node": _or_error(lambda question: _read(decode_json(question["str"]))),
    "encode_pod": _or_error(lambda question: {"str": encode_devices(values.pieces(question["pod_devices"]))}),
    "decode_pod": _or_error(
        lambda question: {
            "pod_devices": [[values.granted(g) for g in piece] for piece in decode_devices(question["str"])]
        }
    ),
    "encode_mig": _or_error(_encode_mig),
    "decode_mig": _or_error(_decode_mig),
}


NO_REQUEST = {"nums": 0, "type": "", "memreq": 0, "mempercentagereq": 0, "coresreq": 0}

DECISION = "schedule"


def answer(question: Json, catalog: Catalog) -> Json:
    """Ask our code. HamiError when this kind of question has no answer here."""
    kind = question.get("fn", "")
    if kind in ABOUT_A_FAMILY:
        known = catalog.find(question)
        return ABOUT_A_FAMILY[kind](question, known)
    if kind == DECISION:
        return decisions.answer(question, catalog)
    if kind in GENERAL:
        return GENERAL[kind](question)
    for parity in catalog.parities:
        if kind in parity.answers:
            return parity.answers[kind](question)
    raise HamiError(f"nothing here answers questions of the kind {kind!r}")


def consistent(question: Json, ours: Json, catalog: Catalog) -> bool:
    """Whether our answer is right in all that no difference is about: ``fit`` and whole decisions have such parts."""
    if question["fn"] == DECISION:
        return sound_decision(question, ours, catalog)
    if question["fn"] != fits.QUESTION:
        return True
    known = catalog.find(question)
    return fits.consistent(known.parity.remembered(question), ours, _policy(known), known.parity)


def _fit(question: Json, known: Known) -> Json:
    return fits.answer(known.parity.remembered(question), _policy(known), known.parity)


def _request(question: Json, known: Known) -> Json:
    asked = _policy(known).request(values.container(question["container"]))
    if isinstance(asked, Demand):
        return {"request": known.parity.request(asked, known.parity.unset_percent)}
    return {"request": NO_REQUEST}


def _mutate(question: Json, known: Known) -> Json:
    container = values.container(question["container"])
    pod = values.pod(question.get("pod"))
    admitted = known.family.rules.admit(container, pod)
    if isinstance(admitted, Denied):
        return {"err": admitted.why}
    env = {**container.env, **admitted.env}
    return {
        "found": admitted.found,
        "limits": {**container.limits, **admitted.limits},
        "requests": {**container.requests, **admitted.requests},
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "pod_annotations": {**pod.annotations, **admitted.pod_annotations},
        "runtime_class": admitted.runtime_class,
    }


def _score_node(question: Json, known: Known) -> Json:
    decision = Decision(
        node=values.node(question.get("node")),
        pod=values.pod(question.get("pod")),
        pieces=values.pieces(question.get("pod_devices")),
        before=[values.state(item) for item in question.get("previous") or ()],
        order=question.get("policy", ""),
    )
    worth = _policy(known).score(decision)
    ranking = isinstance(worth, Ranking)
    return {"policy_neutral": ranking, "score": worth.value if isinstance(worth, Ranking) else worth}


def _sort_devices(question: Json) -> Json:
    states = [values.state(item) for item in question["devices"]]
    weighing = weights({WEIGHTS_KEY: question["weights"]} if question.get("weights") else {})
    if isinstance(weighing, Invalid):
        return {"err": str(weighing)}
    types = {state.info.type for state in states}
    requests = question.get("requests_by_type")
    if requests is None:  # then the scores are part of the question
        scores = {item["id"]: item.get("score", 0) for item in question["devices"]}
    else:
        demands = [Parity().demand(item) for item in requests.values() if item["type"] in types]
        scores = {state.uuid: score(state, demands, weighing) for state in states}
    words = [word.strip() for word in question["policy"].split(",")]
    order = ordered(states, words, lambda state: scores[state.uuid], numa_first=question["numa_bind"])
    return {
        "order": [{"id": state.uuid, "score": scores[state.uuid]} for state in order],
        "node_default_score": fullness(states),
    }


def _collapse(question: Json) -> Json:
    inits = question["pod"].get("init_count", 0)
    pods = {device_type: values.pieces(pieces) for device_type, pieces in question["pd"].items()}
    return {
        "collapsed": {
            w: [[values.granted(g, slots=True) for g in effective_grants(p, inits)]] for w, p in pods.items()
        },
        "app_only": {w: [[values.granted(g, slots=True) for g in sum_grants(p[inits:])]] for w, p in pods.items()},
    }


def _policy(known: Known) -> Policy:
    if known.family.rules.policy is None:
        raise HamiError(f"the family {known.family.resources.device_type} of vendor {known.vendor} has no policy")
    return known.family.rules.policy


ABOUT_A_FAMILY: Mapping[str, Callable[[Json, Known], Json]] = {
    "fit": _fit,
    "request": _request,
    "mutate": _mutate,
    "score_node": _score_node,
}
GENERAL: Mapping[str, Callable[[Json], Json]] = {"sort_devices": _sort_devices, "collapse": _collapse, **CODECS}
