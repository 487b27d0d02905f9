"""The cases of HAMi's own tests of its scheduler: several containers, several nodes, and what pods take."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import NodeView
from hami_plugin.scheduler.engine.devices import (
    Context,
    Demand,
    DevicePool,
    Invalid,
    NodeInfo,
    PodAllocation,
    Reason,
    subtract_holdings,
)
from hami_plugin.scheduler.engine.filter import score_nodes
from hami_plugin.scheduler.engine.fit import CycleOptions, PodFit, Policies, Unschedulable, fit_pod, pod_demands
from hami_plugin.scheduler.engine.policy import Policy, standard
from tests.hami import values
from tests.hami.catalog import Catalog
from tests.support.hami import Json, asks
from tests.support.pods import nvidia
from vendors.nvidia.rules import in_mode

WORDS = ("NVIDIA", "kunlun")
EXCUSED = {
    "scheduler.getNodeResources": "picks devices from one list by part of a type's name; here each family has its own",
}


@cache
def catalog() -> Catalog:
    return Catalog()


def rules(pod: Any, requests: Any) -> Policies:
    """The families' rules, told what each container asks for: HAMi's tests say so directly."""
    containers = values.pod(pod).containers
    table = [{request["type"]: request for request in (one or {}).values()} for one in requests or ()]
    found = {}
    for device_type in WORDS:
        known = catalog().find({"vendor": device_type})
        asked = {
            id_of(container): known.parity.demand(hami(request[device_type]))
            for container, request in zip(containers, table, strict=True)
            if device_type in request
        }
        found[device_type] = replace(
            known.family.rules.policy, request=lambda container, asked=asked: asked.get(id_of(container))
        )
    return found


def spelt_out(pod: Json, asking: int) -> Json:
    """The pod, with containers where HAMi's test has requests of none."""
    if pod.get("containers") or pod.get("init_containers"):
        return pod
    return {**pod, "containers": [{"name": f"c{number}"} for number in range(asking)]}


def id_of(container: Any) -> tuple[str, bool, str]:
    return (container.name, container.init, json.dumps(dict(container.limits), sort_keys=True))


def hami(request: Any) -> Any:
    """An omitted percentage is none to this backend, as is 101."""
    return {
        "nums": request["nums"],
        "type": request["type"],
        "memreq": request.get("memreq", 0),
        "mempercentagereq": request.get("mem_percentagereq", 0),
        "coresreq": request.get("coresreq", 0),
    }


def node_info(name: str, node: Any) -> NodeInfo:
    states = [values.state(device(one["device"])) for one in node["devices"].get("device_lists") or ()]
    pools = {
        device_type: DevicePool(
            states=tuple(state for state in states if device_type.lower() in state.info.type.lower())
        )
        for device_type in WORDS
    }
    return NodeInfo(node=NodeView(name=name), pools=pools)


def device(item: Any) -> Any:
    """A device in this file's spelling as one in the vectors'."""
    profiles = [
        {
            "name": one["name"],
            "memoryMB": one.get("memory_mb", 0),
            "core": one.get("core", 0),
            "sliceCount": one.get("slice_count", 0),
            "placements": [{"start": 0, **fit_pod} for fit_pod in one["placements"]],
        }
        for one in item.get("mig_profiles") or ()
    ]
    occupied = [
        {"profile": one["profile"], "placement": {"start": 0, **one["placement"]}}
        for one in item.get("mig_allocations_in_use") or ()
    ]
    return {**item, "mig_profiles": profiles, "mig_in_use": occupied}


@asks("scheduler_score", "calcScore", "calcScoreWithOptions")
def test_a_pod_is_placed_and_nodes_are_scored_as_by_hami(case: Any):
    question, expected = case["input"], case["expected"]
    if expected["error"]:
        weights_without_meaning_fail(question["pod"])
        return
    pod = spelt_out(question["pod"], len(question["resourceReqs"] or ()))
    nodes = [node_info(name, node) for name, node in sorted(question["nodes"].items())]
    order = case.get("context", {}).get("NodeSchedulerPolicy", "binpack")
    device_order = next((node["devices"].get("policy") for node in question["nodes"].values()), "") or "spread"

    policies = rules(pod, question["resourceReqs"])
    choice = score_nodes(values.pod(pod), policies, nodes, CycleOptions(order=device_order), order=order)

    assert {one.node_info.node.name: one.why for one in choice.failed} == (expected["after"] or {}).get(
        "failedNodes", {}
    )
    theirs = {one["node_id"]: one for one in expected["scores"]["node_list"]}
    assert {one.name for one in choice.fitting} == set(theirs)
    for one in choice.fitting:
        assert one.score == pytest.approx(theirs[one.name].get("score", 0), rel=1e-5)
        mine, his = chosen(one.placed.given), shares(theirs[one.name]["devices"])
        assert mine == his
        usage = (expected["after"].get("node_usage") or {}).get(one.name, {})
        after = {state.uuid: state for states in one.placed.after.values() for state in states}
        for uuid, numbers in usage.items():
            state = after[uuid]
            assert (state.slots, state.memory, state.cores) == (
                numbers["used"],
                numbers["usedmem"],
                numbers["usedcores"],
            )


def chosen(given: Any) -> Any:
    """Which devices, by container. HAMi may leave out empty entries (D-220)."""
    return {
        device_type: [[(one.uuid, one.memory, one.cores) for one in piece] for piece in pieces if piece]
        for device_type, pieces in given.items()
    }


def shares(devices: Any) -> Any:
    found = {
        device_type: [[(one["uuid"], one["usedmem"], one["usedcores"]) for one in piece] for piece in pieces if piece]
        for device_type, pieces in devices.items()
    }
    return {device_type: pieces for device_type, pieces in found.items() if pieces}


def weights_without_meaning_fail(pod: Json) -> None:
    node = NodeInfo(node=NodeView(name="n"), pools={})

    choice = score_nodes(values.pod(pod), rules({}, []), [node], CycleOptions())

    (failed,) = choice.failed
    assert "device-scoring-weights" in failed.why


@asks("scheduler_usage", "getNodesUsage")
def test_usage_is_rebuilt_from_pods_as_by_hami(case: Any):
    state = case["input"]["state"]
    family = catalog().find({"vendor": "NVIDIA"}).family
    for name, expected in case["expected"]["usage"].items():
        registered = [values.state(info(one)) for one in state["nodes"][name]["devices"].get("NVIDIA", ())]
        here = [pod for pod in (state["pods"] or {}).values() if pod["node_id"] == name]
        holdings = [
            PodAllocation(
                pod=values.pod({key: pod[key] for key in ("name", "annotations") if key in pod}),
                pieces=tuple(tuple(grant(one) for one in piece) for piece in pod["devices"]["NVIDIA"]),
            )
            for pod in here
        ]

        states = subtract_holdings(registered, holdings, family.rules.policy.request, family.rules.policy.restore)

        assert [(one.uuid, one.slots, one.memory, one.cores) for one in states] == [
            (one["id"], one.get("used", 0), one.get("usedmem", 0), one.get("usedcores", 0)) for one in expected
        ]
        assert [sorted(tenant.name for tenant in one.tenants) for one in states] == [
            sorted(one.get("pods") or ()) for one in expected
        ]


def info(item: Any) -> Any:
    spelt = device(item)
    return {**spelt, "totalmem": item.get("devmem", 0), "totalcore": item.get("devcore", 0)}


def grant(item: Any) -> Grant:
    return replace(values.grant(item), slots=item.get("slots", 1))


@asks("scheduler_score", "fitInDevices")
def test_one_container_gets_devices_of_a_node_as_by_hami(case: Json):
    question, expected = case["input"], case["expected"]
    node, wanted = question["node"], list(question["requests"].values())
    pod = spelt_out(question["pod"], 1)
    policies = rules(pod, [question["requests"]]) | mocks(wanted)
    states = [values.state(device(one["device"])) for one in node["devices"]["device_lists"]]
    pools = {
        device_type: DevicePool(states=tuple(one for one in states if device_type in one.info.type))
        for device_type in policies
    }

    outcome = fit_pod(values.pod(pod), policies, NodeInfo(node=NodeView(name="node-1"), pools=pools))

    assert isinstance(outcome, PodFit) == expected["fit"]
    if isinstance(outcome, Unschedulable):
        # A type that no backend serves is unknown to HAMi; here a family without a device on the node.
        theirs = expected["reason"].replace("Device type not found", Reason.TOO_FEW_ON_NODE)
        assert outcome.why == theirs
        return
    assert set(outcome.given) == set(expected["after"]["devinput"])
    for device_type, pieces in expected["after"]["devinput"].items():
        given = [[full(one) for one in piece] for piece in pieces]
        assert [[one.uuid for one in piece] for piece in outcome.given[device_type]] == [
            [x["uuid"] for x in p] for p in given
        ]
        if device_type.startswith("mock"):  # HAMi's mocks take nothing of a device
            continue
        assert chosen({device_type: outcome.given[device_type]}) == shares({device_type: given})
        for state in outcome.after[device_type]:
            usage = expected["after"]["node_usage"]["node"][state.uuid]
            assert (state.slots, state.memory, state.cores) == (usage["used"], usage["usedmem"], usage["usedcores"])


def full(item: Json) -> Json:
    return {"usedmem": 0, "usedcores": 0, **item}


def mocks(requests: Any) -> Policies:
    """Families that HAMi's tests invent: anything that is asked for, of any device."""
    known = catalog().find({"vendor": "NVIDIA"}).parity
    return {
        one["type"]: Policy(request=lambda _container, one=one: known.demand(hami(one)), serves=standard(one["type"]))
        for one in requests
        if one["type"] not in WORDS
    }


@asks("scheduler_score", "isMIGRequest")
def test_a_card_in_mig_mode_serves_a_container_several_times_unless_the_pod_wants_it_otherwise(case: Json):
    question = case["input"]
    policy = {family.resources.device_type: family.rules.policy for family in nvidia()}.get(question["request"]["type"])
    states = [values.state({"id": "card", **one}) for one in question["devices"]]
    context = Context(demand=Demand(device_type="NVIDIA", count=2), pod=values.pod(question["pod"]))

    several = [one for one in states if policy and policy.again(one) and not in_mode(one, context)]

    assert bool(several) == case["expected"]["result"]


@asks("resource_requests", "Resourcereqs")
def test_each_container_asks_in_its_own_place_init_containers_first(case: Json):
    pod, context = case["input"]["pod"], case.get("context", {})
    named = context.get("resource_names", {}).get("NVIDIA", {})
    policies = {
        one.resources.device_type: one.rules.policy
        for one in nvidia(named.get("resource_count_name", "nvidia.com/gpu").split("/")[0])
    }
    if context.get("resource_names") == {"NVIDIA": {}}:
        policies = {"NVIDIA": replace(policies["NVIDIA"], request=thousand_each)}  # as HAMi's mock of a backend

    found = pod_demands(values.pod(pod), policies)

    assert not isinstance(found, Invalid)
    assert [{device_type: said(one) for device_type, one in asked.items()} for asked in found] == [
        {device_type: hami(request) for device_type, request in (one or {}).items()}
        for one in case["expected"]["result"]
    ]


def thousand_each(container: Any) -> Demand | None:
    count = container.amount("nvidia.com/gpu")
    return (
        Demand(device_type="NVIDIA", count=count, memory=1000 * count, percent=0, cores=10 * count) if count else None
    )


def said(demand: Demand) -> Json:
    known = catalog().find({"vendor": "NVIDIA"}).parity
    return known.request(demand, known.unset_percent)
