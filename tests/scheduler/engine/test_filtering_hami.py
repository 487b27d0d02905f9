"""HAMi's own cases of the extender's filter: which node is left, why not the others, and what is written to the pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hami_plugin.model.views import NodeView, node_view, pod_view
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.engine.devices import Quota
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterResult, filter_nodes, simulate
from hami_plugin.scheduler.engine.fit import CycleOptions
from hami_plugin.scheduler.engine.node_info import PodIndex, assignment, read_idle_node
from hami_plugin.scheduler.extender.payloads import ExtenderArgs, extender_args, filter_result
from tests.support.hami import Json, asks
from tests.support.pods import entry, json_of, nvidia

FAMILIES = nvidia("hami.io")
NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
REGISTER = FAMILIES[0].rules.annotations.register


def node(name: str, known: Json) -> NodeView:
    devices = [info(item) for item in known["devices"].get("NVIDIA", ())]
    return NodeView(name=name, annotations={REGISTER: encode_json(devices)})


def info(item: Json) -> DeviceInfo:
    names = ("id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health")
    return DeviceInfo(**{"index": 0, **{key: item[key] for key in names if key in item}})


def snapshot(case: Json) -> ClusterSnapshot:
    state = case["input"]["state"]
    # The recorder's pods live in the namespace "default" unless they say otherwise, or in none at all.
    namespace = case["input"]["args"]["pod"].get("namespace", "")
    there = state["quotas"].get(namespace, {})
    quota = Quota(
        limits={name: one.get("limit", 0) for name, one in there.items() if one.get("limit_set")},
        used={name: one.get("used", 0) for name, one in there.items()},
    )
    return ClusterSnapshot(
        families=FAMILIES,
        nodes={name: read_idle_node(node(name, known), FAMILIES).node_info for name, known in state["nodes"].items()},
        pods=PodIndex(entry(item) for item in state["pods"].values()),
        options=CycleOptions(order="spread", quota=quota),
        node_order=case["context"]["NodeSchedulerPolicy"],
    )


def offered(case: Json) -> ExtenderArgs:
    args = case["input"]["args"]
    if "nodes" not in args:
        return extender_args({"Pod": json_of(args["pod"]), "Nodes": None, "NodeNames": args["node_names"]})
    return extender_args(
        {"Pod": json_of(args["pod"]), "Nodes": {"items": list(map(kubernetes, args["nodes"]["items"]))}}
    )


def kubernetes(node: Json) -> Json:
    return {"metadata": {"name": node["name"], "annotations": node.get("annotations", {})}}


def theirs(result: Json) -> Json:
    """HAMi's result, with empty members as we write them."""
    failed = {"FailedNodes": result.get("failed_nodes", {}), "Error": ""}
    if "nodes" in result:
        return {**failed, "Nodes": {"items": list(map(kubernetes, result["nodes"]["items"]))}}
    return {**failed, "NodeNames": result.get("node_names", [])}


def written(case: Json) -> Any:
    """What HAMi writes to the pod: new annotations, and labels."""
    pod = case["input"]["args"]["pod"]
    key = f"{pod.get('namespace', '')}/{pod['name']}"
    before, after = (
        case[part][at]["pods"].get(key, {}) for part, at in (("input", "cluster"), ("expected", "cluster_after"))
    )
    new = {key: text for key, text in after.get("annotations", {}).items() if key not in before.get("annotations", {})}
    return {key: text.replace("{now_unix}", str(int(NOW.timestamp()))) for key, text in new.items()}, after.get(
        "labels", {}
    )


@asks("scheduler_filter", "Scheduler.Filter")
def test_the_same_node_is_left_with_the_same_devices(case: Json):
    asked, known = offered(case), snapshot(case)
    pod = pod_view(asked.pod)

    if asked.nodes is None:
        outcome = filter_nodes(known, pod, asked.names)
    else:
        outcome = simulate(known, pod, list(map(node_view, asked.nodes)))

    assert isinstance(outcome, FilterResult)
    ours, expected = filter_result(asked, outcome), theirs(case["expected"]["result"])
    if asked.nodes is not None:  # where none is left, HAMi says so in no form at all
        expected = {**expected, "Nodes": expected.get("Nodes", {"items": []})}
        expected.pop("NodeNames", None)
    assert without_others(ours) == expected
    annotations, labels = written(case)
    if outcome.placed and asked.nodes is None:  # a simulation writes nothing
        changes = assignment(FAMILIES, pod, outcome.placed, NOW)
        assert (changes.annotations, changes.labels) == (annotations, labels)
    else:
        assert not annotations


def without_others(result: Json) -> Json:
    """HAMi tells why other nodes failed only where none is left."""
    return {**result, "FailedNodes": {} if result.get("NodeNames") else result["FailedNodes"]}
