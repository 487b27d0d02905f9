"""Recorded decisions of HAMi's code, asked of the extender by HTTP. All it knows stands at a simulated API server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import RESOURCES
from tests.hami.answers import answer
from tests.hami.catalog import Catalog
from tests.hami.compare import compared
from tests.hami.decisions import timeless
from tests.hami.run import Case, documented_in, explaining, read
from tests.hami.values import pieces
from tests.support.extender import Rig, listening
from tests.support.scale import spread
from tests.support.scheduling import annotations, serving, until, written

ROOT = Path(__file__).parents[3]
CASES = spread(read(ROOT / "tests" / "vectors" / "schedule.jsonl.xz"), lambda case: case.question["vendor"])

Json = Mapping[str, Any]

NOTHING: Json = {"failed": {}, "annotations": {}}
COUNTED = re.compile(r"container (\S+) asks for (\d+) (\S+) in all and its (\d+) (\S+) come to (\d+)")
OTHERWISE_COUNTED = "D-392"
"""HAMi grants so much of each device; the kubelet counts what the container writes, once."""


@pytest.mark.difference("D-392")
async def test_the_service_decides_as_hami_or_by_a_documented_difference(tmp_path):
    """The scores of nodes are never told to anybody: of them the rules' own answer stands in."""
    catalog = Catalog()
    documented = documented_in((ROOT / "docs" / "differences.md").read_text(encoding="utf-8"))
    explained = explaining(catalog, documented)
    outcomes: Counter[str] = Counter()

    async for case, result in answered(catalog, tmp_path):
        pure = answer(case.question, catalog)
        if not any(pure["requests"]) and not result["failed"]:
            # HAMi's inner function was recorded. Around it both let such a pod go anywhere, and write nothing.
            assert result == {"best": "".join(node["name"] for node in case.question["nodes"]), **NOTHING}
            outcomes["asks for nothing"] += 1
            continue
        ours = {**pure, **result}
        disagreements = [compared(case.question, ours, theirs) for theirs in case.answers]
        reason = "as HAMi" if not all(disagreements) else explained(case, ours)
        if not reason and otherwise_counted(case.question, pure, result):
            reason = OTHERWISE_COUNTED
        assert reason, (case.id, min(disagreements, key=len))
        outcomes[reason] += 1

    assert sum(outcomes.values()) == len(CASES)
    assert outcomes["as HAMi"] > len(CASES) / 2, outcomes


def otherwise_counted(question: Json, pure: Json, result: Json) -> bool:
    """Each node that the rules would take is refused since the kubelet would count something else; no other is."""
    containers = {item["name"]: item.get("limits") or {} for item in question["pod"]["containers"]}
    refused = {name: COUNTED.fullmatch(why) for name, why in result["failed"].items()}
    for match in filter(None, refused.values()):
        name, asked, resource, count, devices, granted = match.groups()
        limits = containers[name]
        if (limits.get(resource), limits.get(devices)) != (asked, count) or int(asked) == int(granted):
            return False
    others = {name: why for name, why in result["failed"].items() if not refused[name]}
    taken = {node["name"] for node in question["nodes"]} - pure["failed"].keys()
    counted = {name for name, match in refused.items() if match}
    return bool(counted) and taken == counted and others == pure["failed"] and not result["best"]


async def answered(catalog: Catalog, tmp_path: Path) -> AsyncIterator[tuple[Case, Json]]:
    """Each question with what the service answers: one running service for all questions with the same families."""
    groups: dict[tuple[int, ...], list[Case]] = {}
    for case in CASES:
        families = [known.family for known in catalog.all(case.question).values()]
        groups.setdefault(tuple(map(id, families)), []).append(case)
    for cases in groups.values():
        families = [known.family for known in catalog.all(cases[0].question).values()]
        async with (
            SimulatedApiServer() as server,
            serving(server, tmp_path, families=families) as service,
            listening(service) as rig,
        ):
            for case in cases:
                yield case, await served(server, service, rig, case.question, families)


async def served(
    server: SimulatedApiServer, service: Extender, rig: Rig, question: Json, families: Sequence[Family]
) -> Json:
    """What the service answers and writes, in the recorder's words. The cluster is empty before and after."""
    names = [node["name"] for node in question["nodes"]]
    for node in question["nodes"]:
        meta = {key: node[key] for key in ("name", "labels", "annotations") if node.get(key)}
        server.store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": {"capacity": node["capacity"]}})
    for one in question["running"]:
        server.create_pod(running(one, families))
    pod = server.create_pod(asking(question["pod"]))
    ledger = service.cache.pods.index
    await until(
        lambda: len(service.cache.nodes.node_infos) == len(names) and len(ledger.entries) == len(question["running"])
    )

    status, result = await rig.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
    await written(service, pod)

    after = annotations(server.pod("default", "p"))
    for one in server.pods():
        server.delete_pod("default", one["metadata"]["name"])
    for name in names:
        server.delete_node(name)
    await until(lambda: not service.cache.nodes.node_infos and not ledger.entries)
    assert (status, result["Error"]) == (200, "")
    added = {key: text for key, text in after.items() if annotations(pod).get(key) != text}
    assert (ASSIGNED_TIME in added) == bool(added)
    added.pop(ASSIGNED_TIME, None)
    return {"best": "".join(result["NodeNames"]), "failed": result["FailedNodes"], "annotations": timeless(added)}


def running(one: Json, families: Sequence[Family]) -> Json:
    """A pod that has devices already, as a scheduler wrote it down."""
    keys = {family.resources.device_type: family.rules.annotations.allocated for family in families}
    given = {keys[device_type]: encode_devices(pieces(devices)) for device_type, devices in one["devices"].items()}
    meta = {"name": one["pod"]["name"], "annotations": {**given, ASSIGNED_NODE: one["node"]}}
    spec = {"nodeName": one["node"], "containers": [{"name": item["name"]} for item in one["pod"]["containers"]]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def asking(pod: Json) -> Json:
    def container(item: Json) -> Json:
        resources = {key: item[key] for key in ("limits", "requests") if item.get(key)}
        return {"name": item["name"], "resources": resources}

    kinds = {"initContainers": pod["init_containers"], "containers": pod["containers"]}
    spec = {kind: [container(item) for item in items] for kind, items in kinds.items()}
    return {"metadata": {"name": "p", "annotations": dict(pod["annotations"])}, "spec": spec}
