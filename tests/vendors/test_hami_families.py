"""What each of HAMi's vendors answers about itself in the same words: its name, types, health, and the node's lock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import yaml

from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.nodes import liveness, owned_by
from hami_plugin.scheduler.engine.devices import Context, Demand, Reason
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.sdk import Family
from tests.hami import values
from tests.hami.answers import NO_REQUEST
from tests.support.hami import Json, asks
from tests.support.hami_questions import catalog, expected, family, renamed, section, word_of

NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
EXCUSED = {
    "NodeCleanUp": "removes the handshake of a node that a scheduler has given up; the node itself writes it here",
    "NodeDeleted": "forgets what a scheduler remembers of a node; here nothing is remembered between two looks",
}


def about(case: Json) -> Family:
    return family(word_of(case))


@asks(
    ("amd", "biren", "cambricon", "enflame_gcu", "hygon", "iluvatar", "kunlun_vxpu", "mthreads", "vastai"), "CommonWord"
)
def test_a_family_has_hamis_word(case: Json) -> None:
    assert about(case).resources.device_type == case["expected"]["result"]


@asks(("kunlun_vxpu", "nvidia_fit"), "GetResourceNames")
def test_a_quota_is_kept_by_the_configured_names(case: Json) -> None:
    config = yaml.safe_dump({case["fn"].partition(".")[0]: section(case)})
    names = catalog().find({"vendor": word_of(case), "config": config}).family.resources

    ours = {"resource_count_name": names.count, "resource_memory_name": names.memory, "resource_core_name": names.cores}

    assert {key: name for key, name in ours.items() if name} == case["expected"]["result"]


TYPED = ("amd", "biren", "cambricon", "enflame_fit", "hygon", "iluvatar", "metax_gpu", "mthreads", "nvidia_fit")


@asks((*TYPED, "ascend_fit", "awsneuron_fit", "kunlun_vxpu", "vastai"), "checkType", "CheckType")
def test_a_device_serves_the_types_that_hami_says(case: Json) -> None:
    put, said = case["input"], case["expected"]
    assert served(about(case), put["node"]["type"], put.get("d") or {}, put.get("annos")) is (
        said["type_ok"] and said.get("matched", True)
    )


@asks(("amd", "hygon", "nvidia_fit"), "checkAMDType", "checkDCUtype", "checkGPUtype")
def test_a_device_serves_the_annotated_types_that_hami_says(case: Json) -> None:
    one, put = about(case), case["input"]
    kind = put.get("cardtype") or put["cardType"]
    assert served(one, one.resources.device_type, {"type": kind}, put["annos"]) is case["expected"]["result"]


def served(one: Family, device_type: str, device: Json, annotations: Json | None) -> bool:
    """Whether the type of this device is right for a pod with these annotations."""
    assert one.rules.policy
    ample = {"id": "d", "count": 4, "totalmem": 98304, "totalcore": 100, "type": one.resources.device_type}
    cut = {"profiles": {"6g.48gb": "0"}}  # so that there is a partition to ask for where devices have such
    state = values.state({**ample, **device, "health": True, "custominfo": cut})
    request = {**NO_REQUEST, "type": device_type, "nums": 1, "memreq": 6}
    demand = catalog().find({"vendor": one.resources.device_type}).parity.demand(request)
    pod = PodView(uid="u", namespace="n", name="p", annotations=annotations or {})
    outcome = fit(one.rules.policy, [state], Context(demand=demand, pod=pod))
    (verdict,) = outcome.verdicts
    return verdict.reason is not Reason.TYPE_MISMATCH


@asks(("metax_gpu", "mthreads"), "customFilterRule")
def test_a_pods_second_share_is_where_hami_puts_it_unless_it_is_a_whole_card(case: Json) -> None:
    """HAMi keeps all of a pod's devices on one card. Whole cards may be several here (D-120, D-190)."""
    one, put = about(case), case["input"]
    assert one.rules.policy
    ample = {"count": 4, "totalmem": 8192, "totalcore": 16, **put["device"], "health": True}
    given = {device_type: values.pieces(pieces) for device_type, pieces in put["allocated"].items()}
    pod = PodView(uid="u", namespace="n", name="p")
    demand = Demand(device_type=one.resources.device_type, count=1, memory=1024, cores=1)

    outcome = fit(one.rules.policy, [values.state(ample)], Context(demand=demand, pod=pod, given=given))

    assert isinstance(outcome, Granted) is (case["expected"]["result"] or one.resources.device_type == "Metax-GPU")


@asks(("ascend_node", "biren", "hygon", "kunlun_vxpu", "nvidia_node", "vastai"), "CheckHealth")
def test_a_node_is_believed_as_by_hami(case: Json) -> None:
    """Also what HAMi asks next, except where that rests on what its process remembers of the node's register."""
    node, said = values.node(case["input"]["node"]), case["expected"]
    keys = set(case["context"]["handshake_annotations"].values())
    (text,) = (at(value) for key, value in node.annotations.items() if key in keys or not key)
    backend = case["input"].get("backend") or {}
    count = int(node.allocatable.get(backend.get("config", {}).get("resource_count_name", ""), "0"))

    belief = liveness(text, now=NOW.replace(tzinfo=None), allocatable=count)

    assert belief.healthy is said["healthy"]
    if not backend.get("reported_gpu_num"):
        assert belief.asks is said["need_update"]


@asks("enflame_gcu", "CheckHealth")
def test_a_node_whose_capacity_counts_its_cards_is_healthy_if_it_has_some(case: Json) -> None:
    assert bool(about(case).rules.node_devices(values.node(case["input"]["node"]))) is case["expected"]["healthy"]


def at(text: str) -> str:
    """A recorded moment, relative to ours."""
    for name, ago in (("{now}", timedelta()), ("{now-2h}", timedelta(hours=2)), ("{now-59s}", timedelta(seconds=59))):
        text = text.replace(name, (NOW - ago).strftime("%Y-%m-%d %H:%M:%S"))
    assert "{" not in text
    return text


LOCKED = ("biren", "hygon", "iluvatar", "kunlun_vxpu", "nvidia_node", "vastai")


@asks((*LOCKED, "ascend_node"), "LockNode")
def test_a_pod_locks_the_node_if_it_asks_for_devices(case: Json) -> None:
    """As HAMi does it: the node's shared lock, and only where the family has a part in the pod."""
    one = about(case)
    assert one.rules.lock
    assert one.rules.lock.annotation == NODE_LOCK
    name = case["input"]["node"].get("name", "")
    after = case.get("expected", {}).get("cluster_after", {}).get("nodes", {}).get(name) or {}

    assert wants(one, case["input"]["pod"]) is (NODE_LOCK in (after.get("annotations") or {}))


@asks((*LOCKED, "ascend_node"), "ReleaseNodeLock")
def test_a_pod_releases_the_lock_that_names_it(case: Json) -> None:
    pod, name = case["input"]["pod"], case["input"]["node"].get("name", "")
    nodes = [
        case[side].get(key, {}).get("nodes", {}) for side, key in (("input", "cluster"), ("expected", "cluster_after"))
    ]
    before, after = (((one.get(name) or {}).get("annotations") or {}).get(NODE_LOCK, "") for one in nodes)

    releases = wants(about(case), pod) and owned_by(before, pod.get("namespace", ""), pod.get("name", ""))

    assert releases is bool(before and not after)


def wants(one: Family, pod: Json) -> bool:
    assert one.rules.policy
    return any(one.rules.policy.request(container) for container in values.pod(pod).containers)


MOMENTS = {"{now}": 0.0, "{now-1m}": 60.0, "{now-1h}": 3600.0}


@asks("cambricon", "LockNode", "setNodeLock")
def test_a_lock_that_names_nobody_bars_everybody_until_it_is_old(case: Json) -> None:
    """Cambricon's own agent keeps that lock, so a text that says no time bars too, as for HAMi."""
    rule = about(case).rules.lock
    assert rule
    assert not rule.named
    text = (case["input"]["node"].get("annotations") or {}).get(rule.annotation)
    (after,) = case["expected"]["cluster_after"]["nodes"].values()

    free = text is None or MOMENTS.get(text, 0.0) > rule.expires_s

    assert free is ((after.get("annotations") or {}).get(rule.annotation) == "{now}")
    assert free is (case["expected"]["error"] is None)


WRITTEN = (
    "amd",
    "biren",
    "cambricon",
    "enflame_fit",
    "enflame_gcu",
    "hygon",
    "iluvatar",
    "kunlun_vxpu",
    "mthreads",
    "vastai",
)


@asks((*WRITTEN, "nvidia_node"), "PatchAnnotations")
def test_a_decision_is_written_alike(case: Json) -> None:
    one = about(case)
    given = {
        device_type: values.pieces(renamed(pieces)) for device_type, pieces in case["input"]["pod_devices"].items()
    }
    written = one.rules.patch(one, values.pod(case["input"]["pod"]), given) if given else {}
    theirs = case["expected"]["annotations"]
    if "" in theirs:  # the test has not named the annotations
        assert set(written.values()) == set(theirs.values())
        return
    misspelt = {
        key.replace("IGNED", "IGHED"): text for key, text in theirs.items() if key == "CAMBRICON_DSMLU_ASSIGNED"
    }
    theirs = {**theirs, **misspelt}  # D-160
    assert {**written, **{key: text for key, text in theirs.items() if text == "{now_unix_nano}"}} == theirs


TAKEN = ("ascend_fit", "biren", "cambricon", "enflame_fit", "enflame_gcu", "hygon", "kunlun_vxpu", "metax_gpu")


@asks((*TAKEN, "mthreads", "nvidia_mig", "vastai", "awsneuron_fit"), "AddResourceUsage")
def test_a_grant_takes_alike(case: Json) -> None:
    policy = about(case).rules.policy
    assert policy
    given = without_mask(renamed(case["input"]))
    after = {**given, **without_mask(renamed(case["expected"].get("after", {})))}

    node, container = values.state({"id": "", **given["node"]}), values.grant({"uuid": "", **given["container"]})
    booking = policy.book(node, container, values.pod({}))

    assert not isinstance(booking, Reason)
    state, grant = (values.usage(booking[0]), values.granted(booking[1]))
    if case["fn"].startswith("enflame.") and case["id"] in UNCLAMPED:
        assert state["used"] == UNCLAMPED[case["id"]]
        return
    for ours, theirs in ((state, after["node"]), (grant, after["container"])):
        assert {key: theirs.get(key, 0) for key, value in ours.items() if value or theirs.get(key)} == expected(ours)


UNCLAMPED = {"AddResourceUsage-002": 2 * (2**31 - 1), "AddResourceUsage-003": 1}
"""Where Enflame's sums stop at 32 bits for HAMi, and a text beyond them is the largest number (D-301)."""


def without_mask(items: Json) -> Json:
    """Without AWS's second account of a device's cores: the first is `usedcores`, and the only one here."""
    return {
        key: {**item, "custominfo": {k: v for k, v in item["custominfo"].items() if k != "awsusageinfo"}}
        if isinstance(item, dict) and "custominfo" in item
        else item
        for key, item in items.items()
    }
