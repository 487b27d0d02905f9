"""The cases of HAMi's own tests of its scheduler: several containers, several nodes, and what pods take."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.conformance import values
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import NodeView
from hami_plugin.policy.nodes import choose
from hami_plugin.policy.pods import Circumstances, Rules, Site, Stock
from hami_plugin.policy.usage import Holding, used

CASES = Path(__file__).parents[1] / "vectors" / "hami-tests"
WORDS = ("NVIDIA", "kunlun")


@cache
def catalog() -> Catalog:
    return Catalog()


def cases(name: str, function: str) -> list[Any]:
    found = json.loads((CASES / f"{name}.json").read_text())["vectors"]
    return [pytest.param(case, id=case["id"]) for case in found if case["fn"].endswith(f".{function}")]


def rules(pod: Any, requests: Any) -> Rules:
    """The families' rules, told what each container asks for: HAMi's tests say so directly."""
    containers = values.pod(pod).containers
    table = [{request["type"]: request for request in (one or {}).values()} for one in requests or ()]
    found = {}
    for word in WORDS:
        known = catalog().find({"vendor": word})
        asked = {
            id_of(container): known.parity.demand(hami(request[word]))
            for container, request in zip(containers, table, strict=True)
            if word in request
        }
        found[word] = replace(known.family.policy, request=lambda container, asked=asked: asked.get(id_of(container)))
    return found


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


def site(name: str, node: Any) -> Site:
    states = [values.state(device(one["device"])) for one in node["devices"].get("device_lists") or ()]
    stocks = {
        word: Stock(states=tuple(state for state in states if word.lower() in state.info.type.lower()))
        for word in WORDS
    }
    return Site(node=NodeView(name=name), stocks=stocks)


def device(item: Any) -> Any:
    """A device in this file's spelling as one in the vectors'."""
    profiles = [
        {
            "name": one["name"],
            "memoryMB": one.get("memory_mb", 0),
            "core": one.get("core", 0),
            "sliceCount": one.get("slice_count", 0),
            "placements": [{"start": 0, **place} for place in one["placements"]],
        }
        for one in item.get("mig_profiles") or ()
    ]
    occupied = [
        {"profile": one["profile"], "placement": {"start": 0, **one["placement"]}}
        for one in item.get("mig_allocations_in_use") or ()
    ]
    return {**item, "mig_profiles": profiles, "mig_in_use": occupied}


@pytest.mark.parametrize("case", cases("scheduler_score", "calcScore"))
def test_a_pod_is_placed_and_nodes_are_scored_as_by_hami(case: Any):
    question, expected = case["input"], case["expected"]
    nodes = [site(name, node) for name, node in sorted(question["nodes"].items())]
    order = case.get("context", {}).get("NodeSchedulerPolicy", "binpack")
    device_order = next((node["devices"].get("policy") for node in question["nodes"].values()), "") or "spread"

    policies = rules(question["pod"], question["resourceReqs"])
    choice = choose(values.pod(question["pod"]), policies, nodes, Circumstances(order=device_order), order=order)

    assert {one.site.node.name: one.why for one in choice.failed} == (expected["after"] or {}).get("failedNodes", {})
    theirs = {one["node_id"]: one for one in expected["scores"]["node_list"]}
    assert {one.name for one in choice.fitting} == set(theirs)
    for one in choice.fitting:
        assert one.score == pytest.approx(theirs[one.name].get("score", 0), rel=1e-5)
        assert chosen(one.placed.given) == shares(theirs[one.name]["devices"])
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
        word: [[(one.uuid, one.memory, one.cores) for one in piece] for piece in pieces if piece]
        for word, pieces in given.items()
    }


def shares(devices: Any) -> Any:
    found = {
        word: [[(one["uuid"], one["usedmem"], one["usedcores"]) for one in piece] for piece in pieces if piece]
        for word, pieces in devices.items()
    }
    return {word: pieces for word, pieces in found.items() if pieces}


@pytest.mark.parametrize(
    "case", [one for one in cases("scheduler_score", "calcScoreWithOptions") if one.values[0]["expected"]["error"]]
)
def test_weights_without_meaning_fail_the_pod(case: Any):
    node = Site(node=NodeView(name="n"), stocks={})

    choice = choose(values.pod(case["input"]["pod"]), rules({}, []), [node], Circumstances())

    (failed,) = choice.failed
    assert "device-scoring-weights" in failed.why


@pytest.mark.parametrize("case", cases("scheduler_usage", "getNodesUsage"))
def test_usage_is_rebuilt_from_pods_as_by_hami(case: Any):
    state = case["input"]["state"]
    family = catalog().find({"vendor": "NVIDIA"}).family
    for name, expected in case["expected"]["usage"].items():
        registered = [values.state(info(one)) for one in state["nodes"][name]["devices"].get("NVIDIA", ())]
        here = [pod for pod in (state["pods"] or {}).values() if pod["node_id"] == name]
        holdings = [
            Holding(
                pod=values.pod({key: pod[key] for key in ("name", "annotations") if key in pod}),
                pieces=tuple(tuple(grant(one) for one in piece) for piece in pod["devices"]["NVIDIA"]),
            )
            for pod in here
        ]

        states = used(registered, holdings, family.policy.request, family.policy.restore)

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
