"""One monitoring view: what a daemon with several vendors tells Prometheus, and whatever is drawn from that."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.demo.node import SimulatedNode
from hami_plugin.model.views import NodeView, PodView
from tests.e2e.steps import WITHIN_S, take_down
from tests.e2e.test_other_vendors import node, run
from tests.support.pages import generated
from tests.support.promql import exported, quotient, series, unknown

ROOT = Path(__file__).parents[2]
PROFILES = ("l40s-4-pcie", "mi300x-8", "aws-inf2-xlarge")
CONTAINER = "hami_plugin_container_memory_bytes"
TARGET = frozenset({"node", "job", "instance"})
"""Labels that deploy/prometheus/podmonitor.yaml gives to every series, and the one that Prometheus itself does."""
OF_PROMETHEUS = {"up": frozenset[str]()}


@pytest.fixture
async def mixed(set_up: Any) -> dict[str, SimulatedNode]:
    """A daemon that serves three vendors, and the stage of each by the vendor's name."""
    stage = await set_up(",".join(PROFILES), usageSeconds=0)
    stages = {each.hardware.vendor.name: each for each in stage.each()}
    await stage.start_daemon()
    for each in stages.values():
        each.daemon = stage.daemon
        await each.until(partial(offered, each), f"the offer of {each.resource}", WITHIN_S)
    return stages


def view(stage: SimulatedNode) -> NodeView:
    return node(stage, stage.resource, *(units.resource for units in stage.family.resources.units))


def offered(stage: SimulatedNode) -> bool:
    """Whether the kubelet has the vendor's devices, and a scheduler can read from the node which ones."""
    return stage.kubelet.allocatable(stage.resource) > 0 and bool(stage.family.rules.node_devices(view(stage)))


OF_USAGE = {
    *("hami_plugin_usage_age_seconds", "hami_plugin_container_usage_info", "hami_plugin_container_usage_rejected"),
    *("hami_plugin_container_memory_used_bytes", "hami_plugin_container_utilization_ratio"),
    *("hami_plugin_container_limits_changed", "hami_plugin_container_last_kernel_timestamp_seconds"),
}
"""Of containers whose usage is read; tests/e2e/test_usage.py shows these."""
OF_PARTITIONS = {
    *("hami_plugin_partitions", "hami_plugin_partition_placeable", "hami_plugin_partition_placeable_ratio"),
}
"""Of cards that are cut for containers; tests/e2e/test_dynamic_mig.py shows these."""
OF_CLAIMS = {
    *("hami_plugin_dra_driver_registered", "hami_plugin_dra_slices", "hami_plugin_dra_slices_generation"),
    *("hami_plugin_dra_slices_devices", "hami_plugin_dra_claims_prepared", "hami_plugin_slice_writes_total"),
    *("hami_plugin_claims_total", "hami_plugin_claim_seconds"),
}
"""Of devices that go by claims; tests/e2e/test_claims_commands.py shows these."""
OF_LOAD = {
    *("hami_plugin_device_memory_used_bytes", "hami_plugin_device_utilization_ratio"),
    *("hami_plugin_device_memory_bandwidth_utilization_ratio", "hami_plugin_container_held_back"),
}
"""Of how busy devices are, and of who waits for others; test_usage.py and test_priorities.py in this folder show
these.
"""
OF_COST = {
    *("hami_plugin_card_energy_joules_total", "hami_plugin_card_idle_energy_joules_total"),
    *(f"hami_plugin_{of}_{what}_total" for of in ("namespace", "label") for what in ("card_seconds", "energy_joules")),
}
"""Of cards whose energy is metered, and of sums over pods; tests/e2e/test_cost.py shows these."""
OF_FAULTS = {"hami_plugin_device_fault_container", "hami_plugin_device_faults_total"}
"""Of devices that have failed; tests/e2e/test_fault_attribution.py shows these."""
OF_PROCESSES = {
    f"hami_plugin_{of}{what}" for of in ("container_processes", "device_outsiders") for what in ("", "_memory_bytes")
}
"""Of whose processes run on cards; tests/e2e/test_usage.py shows these."""
OF_REMEDIES = {"hami_plugin_remediations_total"}
"""Of cordons and resets; tests/e2e/test_remedies.py shows this."""
ELSEWHERE = OF_USAGE | OF_PARTITIONS | OF_CLAIMS | OF_LOAD | OF_COST | OF_FAULTS | OF_PROCESSES | OF_REMEDIES


async def share(stage: SimulatedNode, name: str, **limits: int) -> PodView:
    pod, _answer = await run(stage, name, view(stage), **limits)
    return pod


async def shares(stages: Mapping[str, SimulatedNode]) -> dict[str, PodView]:
    """A pod of each vendor: MiB and percent, compute units, and one of two cores."""
    limits = {
        "nvidia": {"nvidia.com_gpu": 1, "nvidia.com_gpumem": 11517, "nvidia.com_gpucores": 30},
        "amd": {"amd.com_gpu": 1, "amd.com_gpumem": 98296, "amd.com_gpucores": 50},
        "awsneuron": {"aws.amazon.com_neuroncore": 1},
    }
    return {vendor: await share(stages[vendor], f"on-{vendor}", **asked) for vendor, asked in limits.items()}


async def scrape(stage: SimulatedNode) -> str:
    status, text = await stage.get("/metrics")
    assert status == 200
    return text


async def test_one_query_tells_the_allocated_share_of_every_vendors_devices(mixed: dict[str, SimulatedNode]) -> None:
    stage = mixed["nvidia"]
    pods = await shares(mixed)

    text = await scrape(stage)

    query = "hami_plugin_device_memory_allocated_bytes / hami_plugin_device_memory_advertised_bytes"
    answer = {dict(labels)["uuid"]: (dict(labels), value) for labels, value in quotient(text, query).items()}
    devices = {d.uuid for each in mixed.values() for d in each.hardware.machine.devices if d.uuid}
    assert devices <= answer.keys() | {""}
    assert len(answer) == 4 + 8 + 1
    taken = {(labels["vendor"], value) for labels, value in answer.values() if value}
    assert taken == {("nvidia", 11517 / 46068), ("amd", 98296 / 196592), ("awsneuron", 0.5)}
    cores = series(text, "hami_plugin_device_cores_allocated_ratio")
    assert sorted(value for value in cores.values() if value) == [0.3, 0.5, 0.5]
    confirmed = series(text, "hami_plugin_container_confirmed")
    assert {dict(labels)["pod"]: value for labels, value in confirmed.items()} == {pod.name: 1 for pod in pods.values()}
    wanted = f"\n```promql\n{query}\n```\n\n```\n{told(answer.values())}```\n\n"
    assert generated("docs/reference/metrics.md", "shares", wanted) == wanted, "write it anew: UPDATE_DOCS=1 make test"

    for pod in pods.values():
        take_down(stage, pod)
    await gone(stage)
    left = quotient(await scrape(stage), query)
    assert len(left) == len(answer)
    assert set(left.values()) == {0}


def told(answer: Any) -> str:
    """Series as Prometheus prints them, by vendor and index."""
    lines = []
    for labels, value in sorted(answer, key=lambda one: (one[0]["vendor"], int(one[0]["index"]))):
        names = ", ".join(f'{name}="{labels[name]}"' for name in sorted(labels))
        lines.append(f"{{{names}}} {value:g}\n")
    return "".join(lines)


async def gone(stage: SimulatedNode) -> None:
    """Wait until no container has anything."""
    async with asyncio.timeout(30):
        while series(await scrape(stage), CONTAINER):
            pass


@pytest.mark.full
async def test_whatever_is_drawn_alerted_on_and_documented_is_exported(mixed: dict[str, SimulatedNode]) -> None:
    await shares(mixed)
    text = await scrape(mixed["nvidia"])
    there = {**exported(text), **OF_PROMETHEUS}

    drawn = [query for _title, query, _legend in panels()]
    assert len(drawn) > 20
    assert {title: list(unknown(query, there, TARGET)) for title, query, _ in panels()} == {
        title: [] for title, _, _ in panels()
    }
    assert [f"{title}: {legend}" for title, query, legend in panels() if not shown(query, legend, there)] == []
    alerts = list(rules())
    assert len(alerts) > 5
    assert {query: list(unknown(query, there, TARGET)) for query in alerts} == {query: [] for query in alerts}

    ours = {name: labels for name, labels in there.items() if name.startswith("hami_plugin_")}
    of_devices = {name for name in ours if name.startswith(("hami_plugin_device_", "hami_plugin_container_"))}
    counters = {name for name in of_devices if name.endswith(("_total", "_created"))}
    assert {name for name in of_devices - counters if not any(name in query for query in drawn)} == set()
    told = documented()
    assert told.keys() >= ELSEWHERE
    assert {name: labels for name, labels in told.items() if name not in ELSEWHERE} == {
        re.sub(r"_(bucket|sum|count)$", "", name): labels - {"le"}
        for name, labels in ours.items()
        if not name.endswith("_created") and name not in ELSEWHERE
    }


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of everything on the dashboard, its variables among it."""
    board = json.loads((ROOT / "deploy/grafana/hami-plugin.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        for metric, label in re.findall(r"label_values\((\w+)[^,]*, (\w+)\)", str(variable.get("definition", ""))):
            yield variable["name"], f"sum by ({label}) ({metric})", ""


def shown(query: str, legend: str, there: Mapping[str, frozenset[str]]) -> bool:
    """Whether the query's answer has the labels that the legend shows."""
    kept = re.match(r".*\bby \(([^)]*)\)", query)
    labels = {word.strip() for word in kept[1].split(",")} if kept else None
    names = re.findall(r"{{(\w+)}}", legend)
    metrics = [name for name in there if re.search(rf"\b{name}\b", query)]
    return all(name in (labels if labels is not None else there[metrics[0]] | TARGET) for name in names)


def rules() -> Iterator[str]:
    """The queries of the daemon's alerts, and those in their words."""
    document = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8"))
    (daemon,) = (group for group in document["groups"] if group["name"] == "hami-plugin")
    for rule in daemon["rules"]:
        yield rule["expr"]
        yield from re.findall(r'"(hami_plugin_[^"]*)"', " ".join(rule["annotations"].values()))


def documented() -> dict[str, frozenset[str]]:
    """The table of the daemon's metrics in docs/reference/metrics.md."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8").partition("## The scheduler")[0]
    rows = re.findall(r"^\| `(hami_plugin_\w+)` \| ([^|]*) \|", page, flags=re.MULTILINE)
    return {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def test_the_pod_monitor_gives_the_labels_that_queries_count_on() -> None:
    monitor = yaml.safe_load((ROOT / "deploy/prometheus/podmonitor.yaml").read_text(encoding="utf-8"))
    daemon = next(
        one
        for one in yaml.safe_load_all((ROOT / "daemonset.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "DaemonSet"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    template = daemon["spec"]["template"]

    assert {one["targetLabel"] for one in endpoint["relabelings"]} == TARGET - {"instance"}
    assert endpoint["honorLabels"] is True
    assert monitor["metadata"]["namespace"] == daemon["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
