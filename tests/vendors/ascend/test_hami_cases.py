"""HAMi's own unit tests of Ascend, and probes of their edges, asked of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.model.views import ContainerView, whole
from hami_plugin.scheduler.engine.devices import Context, Demand, Denied
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.scheduler.engine.policy import Decision, Policy
from hami_plugin.sdk import Family
from tests.hami import values
from tests.hami.parity import Parity
from tests.support.hami import answers
from vendors.ascend.rules import families
from vendors.ascend.settings import AscendSettings

FILES = Path(__file__).parents[2] / "vectors/hami-tests"
KEYS = {
    "chip_name": "chipName",
    "common_word": "commonWord",
    "resource_name": "resourceName",
    "resource_memory_name": "resourceMemoryName",
    "resource_core_name": "resourceCoreName",
    "memory_allocatable": "memoryAllocatable",
    "memory_capacity": "memoryCapacity",
    "memory_factor": "memoryFactor",
    "ai_core": "aiCore",
    "aicpu": "aiCPU",
    "super_pod": "superPod",
}
NOT_ASKED = {
    "ScoreNode-015": "the network is a Go integer, which no annotation can give",
    "ScoreNode-017": "one NPU is in two networks",
    "GenerateResourceRequests-010": "a negative fraction, which no API server lets through",
    "MutateAdmission-013": "the templates are not sorted, which HAMi does when it starts",
}


def vectors(name: str, function: str) -> list[Any]:
    return [
        pytest.param(vector["input"], vector["expected"], id=vector["id"])
        for vector in json.loads((FILES / f"ascend_{name}.json").read_text())["vectors"]
        if vector["fn"].endswith(f".{function}") and vector["id"] not in NOT_ASKED
    ]


def entry(config: Mapping[str, Any]) -> dict[str, Any]:
    """The chip under test. A test that leaves out what a configuration must have means nothing by it."""
    device_type = config.get("common_word") or config.get("resource_name", "/Ascend910A").partition("/")[2]
    must = {
        "commonWord": device_type,
        "resourceName": f"huawei.com/{device_type}",
        "resourceMemoryName": f"huawei.com/{device_type}-memory",
        "memoryAllocatable": 65536,
        "memoryCapacity": 65536,
    }
    templates = [{"name": one["name"], "memory": one["memory"]} for one in config.get("templates", ())]
    return {**must, **{KEYS[key]: value for key, value in config.items() if key in KEYS}, "templates": templates}


def family(backend: Mapping[str, Any]) -> tuple[Family, Policy]:
    settings = AscendSettings.model_validate({"configs": [entry(backend["config"])]})
    (one,) = families(settings, clock=lambda: 1795232724)
    assert one.rules.policy
    return one, one.rules.policy


def container(item: Mapping[str, Any]) -> ContainerView:
    return ContainerView(name="c", limits=texts(item.get("limits")), requests=texts(item.get("requests")))


def texts(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: one if isinstance(one, str) else one["quantity"] for name, one in (amounts or {}).items()}


def numbers(amounts: Mapping[str, Any] | None, memory: str) -> dict[str, int]:
    return {name or memory: whole(text) for name, text in texts(amounts).items()}


def with_custom(item: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {**item, "custominfo": item.get("custom_info"), **more}


@answers(("ascend_fit", "ascend_910c"), "Devices.Fit")
@pytest.mark.parametrize(("given", "expected"), vectors("fit", "Fit") + vectors("910c", "Fit"))
def test_the_same_npus_or_the_same_reason(given: Any, expected: Any) -> None:
    one, policy = family(given["backend"])
    states = [
        values.state(with_custom(item, type=item.get("type", one.resources.device_type))) for item in given["devices"]
    ]
    empty = {"type": "", "nums": 0, "memreq": 0, "mempercentagereq": 0, "coresreq": 0}
    asked = {**empty, **given["request"], "mempercentagereq": given["request"].get("mem_percentagereq", 0)}
    node = values.node((given.get("node_info") or {}).get("node"))
    context = Context(demand=Parity().demand(asked), pod=values.pod(given["pod"]), node=node)

    outcome = fit(policy, states, context)

    if expected["fit"]:
        assert isinstance(outcome, Granted)
        (devices,) = expected["devices"].values()
        mine = [(grant.uuid, grant.memory, grant.cores) for grant in outcome.grants]
        assert mine == [(one["uuid"], one["usedmem"], one["usedcores"]) for one in devices]
    else:
        assert str(outcome) == expected["reason"]


@answers("ascend_fit", "Devices.ScoreNode")
@pytest.mark.parametrize(("given", "expected"), vectors("fit", "ScoreNode"))
def test_the_same_worth_of_a_node(given: Any, expected: Any) -> None:
    _, policy = family(given["backend"])
    pieces = values.pieces([[with_custom(item) for item in piece] for piece in given["pod_devices"]])
    decision = Decision(node=values.node(given["node"]), pod=values.pod(None), pieces=pieces, before=())

    assert policy.score(decision) == pytest.approx(expected["result"], rel=1e-5)


@answers("ascend_admission", "Devices.MutateAdmission")
@pytest.mark.parametrize(("given", "expected"), vectors("admission", "MutateAdmission"))
def test_the_same_changes_by_admission(given: Any, expected: Any) -> None:
    one, _ = family(given["backend"])
    memory, before = one.resources.memory, container(given["container"])

    found = one.rules.admit(before, values.pod(given["pod"]))

    if isinstance(found, Denied):
        assert expected["error"]
        return
    assert not expected["error"]
    assert found.found == expected["found"]
    after = expected.get("after", {}).get("container", given["container"])
    assert numbers({**before.limits, **found.limits}, memory) == numbers(after.get("limits"), memory)
    assert numbers({**before.requests, **found.requests}, memory) == numbers(after.get("requests"), memory)


@answers("ascend_request", "Devices.GenerateResourceRequests")
@pytest.mark.parametrize(("given", "expected"), vectors("request", "GenerateResourceRequests"))
def test_the_same_request(given: Any, expected: Any) -> None:
    _, policy = family(given["backend"])
    asked = policy.request(container(given["container"]))
    wanted = expected["request"]

    if not wanted["nums"]:
        assert not isinstance(asked, Demand)
        return
    assert isinstance(asked, Demand)
    mine = (asked.count, asked.memory or 0, asked.percent or 0, asked.cores)
    assert mine == (wanted["nums"], wanted["memreq"], wanted["mem_percentagereq"], wanted["coresreq"])


@answers("ascend_templates", "Devices.trimMemory")
@pytest.mark.parametrize(("given", "expected"), vectors("templates", "trimMemory"))
def test_the_same_template(given: Any, expected: Any) -> None:
    (chip,) = AscendSettings.model_validate({"configs": [entry(given["backend"]["config"])]}).chips
    mib = given["m"]
    template = chip.template(mib)

    assert (chip.cut(mib) or 0, template.name if template else "") == (expected["memory"], expected["template"])


@answers("ascend_node", "Devices.PatchAnnotations")
@pytest.mark.parametrize(("given", "expected"), vectors("node", "PatchAnnotations"))
def test_the_same_words_for_the_agent(given: Any, expected: Any) -> None:
    one, _ = family(given["backend"])
    written = {key: text for key, text in expected["annotations"].items() if key.startswith("huawei.com/")}
    if not given["pod_devices"]:
        assert not written
        return
    pieces = values.pieces(given["pod_devices"][one.resources.device_type])

    patch = one.rules.patch(one, values.pod(given["pod"]), {one.resources.device_type: pieces})

    assert {key: text for key, text in patch.items() if key.startswith("huawei.com/")} == written
    assert patch["predicate-time"] == "1795232724"
