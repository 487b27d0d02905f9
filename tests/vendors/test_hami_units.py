"""What HAMi's own unit tests ask of these vendors, put to ours; the questions and answers are recorded as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.conformance import values
from hami_plugin.conformance.answers import NO_REQUEST
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.questions import Case
from hami_plugin.conformance.report import lines
from hami_plugin.conformance.run import asked, documented_in
from hami_plugin.errors import WireError
from hami_plugin.policy.reasons import Reason
from hami_plugin.vendor import Family
from hami_plugin.wire.nodes import DeviceInfo

Json = Mapping[str, Any]

ROOT = Path(__file__).parents[2]
WORDS = {"amd": "AMD", "biren": "Biren", "iluvatar": "MR-V100", "mthreads": "Mthreads", "vastai": "Vastai"}
QUESTIONS = {
    "Fit": "fit",
    "GenerateResourceRequests": "request",
    "MutateAdmission": "mutate",
    "ScoreNode": "score_node",
}
NAMES = {"custom_info": "custominfo", "mem_percentagereq": "mempercentagereq", "previous_devices": "previous"}
"""HAMi's fields in the words of our questions."""

SECTION = {
    "resource_count_name": "resourceCountName",
    "resource_memory_name": "resourceMemoryName",
    "resource_core_name": "resourceCoreName",
}


@cache
def catalog() -> Catalog:
    return Catalog()


def vectors(vendor: str, *functions: str) -> list[Json]:
    found = json.loads((ROOT / f"tests/vectors/hami-tests/{vendor}.json").read_text())["vectors"]
    return [vector for vector in found if vector["fn"].rpartition(".")[2] in functions]


def renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [renamed(item) for item in value]
    return {NAMES.get(key, key): renamed(item) for key, item in value.items()} if isinstance(value, dict) else value


def case(vendor: str, vector: Json) -> Case:
    """A vector as a question, with the resource names that it was asked under."""
    kind = QUESTIONS[vector["fn"].rpartition(".")[2]]
    backend = vector["input"].get("backend") or {}
    section = {SECTION[key]: name for key, name in backend.items() if key in SECTION}
    asked = renamed(vector["input"])
    question = {
        **asked,
        "fn": kind,
        "vendor": WORDS[vendor],
        "config": yaml.safe_dump({vendor: section}),
        "request": {**NO_REQUEST, **asked.get("request", {})},
    }
    return Case(id=vector["id"], question=question, answers=(answer(kind, vector),))


def answer(kind: str, vector: Json) -> Json:
    expected = renamed(vector["expected"])
    if kind == "fit":
        return {"ok": expected["fit"], "reason": expected["reason"], "devices": expected["devices"]}
    if kind == "request":
        return {"request": expected["request"]}
    if kind == "score_node":
        return {"score": expected["result"]}
    after = expected.get("after") or {}
    container = {**vector["input"]["container"], **after.get("container", {})}
    return {
        "err": expected["error"],
        "found": expected["found"],
        "limits": container.get("limits"),
        "requests": container.get("requests"),
        "env": container.get("env"),
        "pod_annotations": (after.get("pod") or vector["input"]["pod"]).get("annotations"),
    }


def family(vendor: str) -> Family:
    return catalog().find({"vendor": WORDS[vendor]}).family


@pytest.mark.parametrize("vendor", WORDS)
def test_questions_about_requests_devices_and_nodes_are_answered_alike(vendor: str) -> None:
    cases = [case(vendor, vector) for vector in vectors(vendor, *QUESTIONS)]
    documented = documented_in((ROOT / "docs/differences.md").read_text())

    outcome = asked(cases, catalog(), documented)

    assert not outcome.unexplained, "\n".join(lines({vendor: outcome}))
    assert outcome.agreed > 40


@pytest.mark.parametrize("vendor", WORDS)
def test_a_nodes_devices_are_read_alike(vendor: str) -> None:
    for vector in vectors(vendor, "GetNodeDevices"):
        node = values.node(vector["input"]["node"])
        key = family(vendor).annotations.register
        annotations = {name or key: text for name, text in node.annotations.items()}
        try:
            found = family(vendor).node_devices(values.node({**vector["input"]["node"], "annotations": annotations}))
        except WireError:
            assert vector["expected"]["error"]
            continue
        assert [plain(info) for info in found] == [expected(item) for item in vector["expected"]["devices"] or ()]


def plain(info: DeviceInfo) -> Json:
    return expected({name: getattr(info, name) for name in info.__slots__})


def expected(item: Json) -> Json:
    """Without what is zero, and without the vendor, which a family knows of its devices."""
    return {key: value for key, value in item.items() if value and key not in ("vendor", "device_vendor")}


@pytest.mark.parametrize("vendor", WORDS)
def test_a_decision_is_written_alike(vendor: str) -> None:
    for vector in vectors(vendor, "PatchAnnotations"):
        given = {word: values.pieces(renamed(pieces)) for word, pieces in vector["input"]["pod_devices"].items()}
        written = family(vendor).patch(family(vendor), values.pod({}), given) if given else {}
        theirs = vector["expected"]["annotations"]
        if "" in theirs:  # the test has not named the annotations
            assert set(written.values()) == set(theirs.values())
        else:
            assert {**written, **{key: text for key, text in theirs.items() if text == "{now_unix_nano}"}} == theirs


@pytest.mark.parametrize("vendor", WORDS)
def test_a_grant_takes_alike(vendor: str) -> None:
    for vector in vectors(vendor, "AddResourceUsage"):
        policy = family(vendor).policy
        assert policy
        booking = policy.book(
            values.state(vector["input"]["node"]), values.grant(vector["input"]["container"]), values.pod({})
        )
        assert not isinstance(booking, Reason)
        assert expected(values.usage(booking[0])) == expected(vector["expected"]["after"]["node"])
