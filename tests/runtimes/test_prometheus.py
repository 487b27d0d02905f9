"""The rules and dashboards of deploy/ in real programs: promtool tries each alert, Prometheus draws each panel."""

from __future__ import annotations

import asyncio
import json
import lzma
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.demo.node import reserved_port
from hami_plugin.model.delivery import Answer
from hami_plugin.protocol import keys
from tests.e2e.manifests import asking, manifest
from tests.runtimes import prometheus
from tests.runtimes.prometheus import Prometheus, Target
from tests.support.live import NAMESPACE, Live, RefusedError, live

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yaml"
BOARDS = {"hami-plugin": "node", "hami-plugin-scheduler": "instance"}
DEADLINE_S = 60
STEP = "1m"

N, S = 'job="hami-plugin",node="n1"', 'job="hami-plugin-scheduler",instance="s1",node="n9"'
UP = {f"up{{{N}}}": "1x60", f'hami_plugin_build_info{{{N},version="1"}}': "1x60"}
ENDPOINT = f'hami_plugin_endpoint_ready{{{N},resource="a/b"}}'
OTHER = f'hami_plugin_endpoint_ready{{{N},resource="a/c"}}'
SCHEDULER = {f"up{{{S}}}": "1x60", f'hami_plugin_build_info{{{S},version="1"}}': "1x60"}
HEALTH = f'hami_plugin_device_health_info{{{N},uuid="G-1",health="unhealthy",reason="Xid79"}}'
EXPIRY = f"hami_plugin_scheduler_certificate_expiry_timestamp_seconds{{{S}}}"


def calls(path: str, failed: str) -> dict[str, str]:
    """Ten calls a minute that are answered, and so many that are not."""
    name = "hami_plugin_scheduler_requests_total"
    told = {"answered": "0+10x60", "failed": failed}
    return {f'{name}{{{S},path="{path}",outcome="{outcome}"}}': values for outcome, values in told.items()}


def slow(path: str, fast: str, late: str) -> dict[str, str]:
    name = "hami_plugin_scheduler_request_seconds_bucket"
    return {
        f'{name}{{{S},path="{path}",le="{le}"}}': value for le, value in (("0.5", fast), ("5", late), ("+Inf", late))
    }


ALERTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "HamiPluginDown": ({**UP, f"up{{{N}}}": "0x60"}, UP),
    "HamiNodeServesNothing": ({**UP, ENDPOINT: "0x60"}, {**UP, ENDPOINT: "1x60", OTHER: "0x60"}),
    "HamiResourceNotServed": ({**UP, ENDPOINT: "1x60", OTHER: "0x60"}, {**UP, ENDPOINT: "1x60", OTHER: "1x60"}),
    "HamiComponentNotReady": (
        {**UP, f'hami_plugin_component_ready{{{N},component="api server"}}': "0x60"},
        {**UP, f'hami_plugin_component_ready{{{N},component="driver x"}}': "0x60"},
    ),
    "HamiConfigurationRefused": (
        {f'hami_plugin_config_refused{{{N},reason="invalid"}}': "1x60"},
        {f'hami_plugin_config_refused{{{N},reason=""}}': "0x60"},
    ),
    "HamiDriverDown": (
        {f'hami_plugin_driver_ready{{{N},vendor="x",reason="NoDriver"}}': "0x60"},
        {f'hami_plugin_driver_ready{{{N},vendor="x",reason=""}}': "1x60"},
    ),
    "HamiDeviceUnhealthy": (
        {f'hami_plugin_device_healthy{{{N},uuid="G-1",family="F",index="0"}}': "0x60", HEALTH: "1x60"},
        {f'hami_plugin_device_healthy{{{N},uuid="G-1",family="F",index="0"}}': "1x60"},
    ),
    "HamiAllocateRefused": (
        {f'hami_plugin_allocations_total{{{N},resource="a/b",outcome="NoPendingPod"}}': "0+1x60"},
        {f'hami_plugin_allocations_total{{{N},resource="a/b",outcome="ok"}}': "0+9x60"},
    ),
    "HamiWrongHolder": (
        {f'hami_plugin_container_starts_total{{{N},resource="a/b",outcome="WrongHolder"}}': "0x45 1x15"},
        {f'hami_plugin_container_starts_total{{{N},resource="a/b",outcome="ok"}}': "0+1x60"},
    ),
    "HamiVendorMistake": (
        {f'hami_plugin_vendor_mistakes_total{{{N},vendor="x",step="discover"}}': "0x45 1x15"},
        {f'hami_plugin_vendor_mistakes_total{{{N},vendor="x",step="discover"}}': "4x60"},
    ),
    "HamiNodeLockStuck": (
        {f"hami_plugin_node_lock_age_seconds{{{N}}}": "0+60x60"},
        {f"hami_plugin_node_lock_age_seconds{{{N}}}": "20x60"},
    ),
    "HamiApiForbidden": (
        {f'hami_plugin_api_calls_total{{{N},verb="patch",kind="nodes",outcome="403"}}': "0+1x60"},
        {f'hami_plugin_api_calls_total{{{N},verb="patch",kind="nodes",outcome="200"}}': "0+1x60"},
    ),
    "HamiSchedulerDown": (
        {f"up{{{S}}}": "1x5 0x55", f'hami_plugin_build_info{{{S},version="1"}}': "1x5"},
        {**SCHEDULER, 'up{job="hami-plugin-scheduler",instance="s2"}': "0x60"},
    ),
    "HamiSchedulerReplicaDown": ({f"up{{{S}}}": "0x60"}, SCHEDULER),
    "HamiSchedulerFails": (calls("/bind", "0+1x60"), {**calls("/bind", "0x60"), **calls("/webhook", "0+1x60")}),
    "HamiWebhookFails": (calls("/webhook", "0+1x60"), {**calls("/webhook", "0x60"), **calls("/bind", "0+1x60")}),
    "HamiSchedulerSlow": (slow("/filter", "0+1x60", "0+10x60"), slow("/filter", "0+10x60", "0+10x60")),
    "HamiCertificateExpires": ({EXPIRY: "86400x60"}, {EXPIRY: "8640000x60"}),
    "HamiCertificateStale": (
        {f"hami_plugin_scheduler_certificate_stale{{{S}}}": "1x60"},
        {f"hami_plugin_scheduler_certificate_stale{{{S}}}": "0x60"},
    ),
}
"""For each alert, series under which it fires, and others under which it does not. A value each minute."""

RECORDED: dict[str, tuple[dict[str, str], float]] = {
    "cluster:hami_plugin_endpoint_ready:ratio": ({ENDPOINT: "1x60", OTHER: "0x60"}, 0.5),
    "cluster:hami_plugin_device_healthy:ratio": (
        {f'hami_plugin_device_healthy{{{N},uuid="{n}"}}': f"{int(n != 3)}x60" for n in range(4)},
        0.75,
    ),
    "resource:hami_plugin_allocations:refused_ratio_rate1h": (
        {
            f'hami_plugin_allocations_total{{{N},resource="a/b",outcome="ok"}}': "0+3x60",
            f'hami_plugin_allocations_total{{{N},resource="a/b",outcome="NoPendingPod"}}': "0+1x60",
        },
        0.25,
    ),
    "resource:hami_plugin_allocate_seconds:p99_rate5m": (
        {f'hami_plugin_allocate_seconds_bucket{{{N},resource="a/b",le="{le}"}}': "0+100x60" for le in ("1", "+Inf")},
        0.99,
    ),
    "path:hami_plugin_scheduler_requests:error_ratio_rate5m": (calls("/bind", "0+10x60"), 0.5),
    "path:hami_plugin_scheduler_requests:error_ratio_rate1h": (calls("/bind", "0x60"), 0.0),
    "path:hami_plugin_scheduler_request_seconds:p99_rate5m": (slow("/bind", "0+10x60", "0+10x60"), 0.495),
}
"""For each recording rule, series and what it makes of them."""


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def programs(present) -> Path:
    return present(prometheus.install)


def promtool(programs: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(programs / "promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def expected(query: str, value: float | None) -> dict[str, Any]:
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    return {"expr": query, "eval_time": "55m", "exp_samples": samples}


def unit(name: str, series: dict[str, str], *tests: dict[str, Any]) -> dict[str, Any]:
    shown = [{"series": key, "values": values} for key, values in series.items()]
    return {"name": name, "interval": STEP, "input_series": shown, "promql_expr_test": list(tests)}


def units() -> Iterator[dict[str, Any]]:
    for alert, (firing, quiet) in ALERTS.items():
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        yield unit(f"{alert} fires", firing, expected(query, 1))
        yield unit(f"{alert} does not fire", quiet, expected(query, None))
    for record, (series, value) in RECORDED.items():
        yield unit(record, series, expected(f"round(max({record}), 0.001)", value))


def try_rules(programs: Path, folder: Path, text: str, about: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "rules.yaml").write_text(text, encoding="utf-8")
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": STEP,
        "tests": [one for one in units() if about in one["name"]],
    }
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    return promtool(programs, "test", "rules", folder / "tests.yaml")


def test_every_rule_is_tried():
    assert {rule["alert"] for rule in rules() if "alert" in rule} == set(ALERTS)
    assert {rule["record"] for rule in rules() if "record" in rule} == set(RECORDED)


def test_promtool_finds_nothing_wrong_with_the_rules(programs):
    done = promtool(programs, "check", "rules", RULES)

    assert (done.returncode, f"{len(rules())} rules found" in done.stdout) == (0, True), done.stderr


def test_each_alert_fires_when_it_should_and_only_then(programs, tmp_path):
    done = try_rules(programs, tmp_path, RULES.read_text(encoding="utf-8"))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("about", "before", "after"),
    [
        ("HamiDriverDown", "hami_plugin_driver_ready == 0", "hami_plugin_driver_ready == 1"),
        ("HamiPluginDown", 'up{job="hami-plugin"} == 0', 'up{job="plugin"} == 0'),
        ("HamiWrongHolder", 'outcome="WrongHolder"', 'outcome="ok"'),
        ("HamiCertificateExpires", "< 7 * 86400", "< 700 * 86400"),
    ],
)
def test_a_rule_that_is_wrong_is_noticed(programs, tmp_path, about, before, after):
    text = RULES.read_text(encoding="utf-8")
    assert before in text

    done = try_rules(programs, tmp_path, text.replace(before, after), about)

    assert "FAILED" in done.stdout + done.stderr


def queries(name: str) -> Iterator[tuple[str, str]]:
    """Title and query of each panel, with the board's variables filled in."""
    board = json.loads((DEPLOY / f"grafana/{name}.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace(f"${BOARDS[name]}", ".*").replace("$__rate_interval", "30s")
            yield f"{panel['title']} {target['refId']}", text


def pod_of(node: Live, name: str, memory: int = 1000, count: int = 1) -> dict[str, Any]:
    names = node.stage.family.resources
    pod = manifest(name, [asking("main", names, memory=memory, cores=10)])
    pod["metadata"]["namespace"] = NAMESPACE
    pod["spec"]["containers"][0]["resources"]["limits"][names.count] = str(count)
    return pod


async def used(node: Live) -> None:
    """What panels show: a pod that runs, refusals, a device that is lost, and calls that are answered or not."""
    await node.run(pod_of(node, "served"))
    with suppress(RefusedError):
        await node.run(pod_of(node, "large", memory=80_000, count=9))
    pod = await node.created(pod_of(node, "forged"))
    await node.bound(pod)
    ours = node.noted("forged")
    forged = {key: text.replace("1000", "90000") for key, text in ours.items() if key.startswith("hami.io/vgpu-dev")}
    node.api.annotate_pod(NAMESPACE, "forged", {**forged, keys.BIND_PHASE: keys.PHASE_ALLOCATING})
    with suppress(RefusedError):
        await node.served(pod)
    node.stage.hardware.simulator.inject("lost", 7)


@contextmanager
def scraping(node: Live, programs, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the node's daemon and the scheduler beside it."""
    with reserved_port() as port:
        pass
    targets = [
        Target(job="hami-plugin", node=node.stage.node, port=int(node.stage.options["--http"].rpartition(":")[2])),
        Target(job="hami-plugin-scheduler", node="elsewhere", port=node.scheduler.plain),
    ]
    with prometheus.serving(programs, folder, port, RULES, targets) as server:
        yield server


async def test_every_panel_has_data_from_a_running_daemon_and_scheduler(programs, tmp_path):
    async with live("dgx-h100") as node:
        with scraping(node, programs, tmp_path) as server:
            await until(server, 'up{job=~"hami-plugin.*"} == 1', 2)
            await used(node)
            await until(server, 'hami_plugin_device_health_info{health!="healthy"}', 1)
            await until(server, "path:hami_plugin_scheduler_requests:error_ratio_rate1h", 3)
            wanted = {f"{name}: {title}": query for name in BOARDS for title, query in queries(name)}
            empty = await drawn(server, wanted)
            broken = [rule for rule in server.rules() if rule["health"] != "ok" or rule.get("lastError")]

    assert len(wanted) > 40
    assert empty == QUIET
    assert broken == []
    shutil.rmtree(tmp_path / "data")


OF_NODE, OF_NAMESPACE = '{node=~".*"}', '{namespace=~".*"}'
LIMIT, ALLOCATED = f"hami_gpu_memory_limit_bytes{OF_NODE}", f"hami_gpu_memory_allocated_bytes{OF_NODE}"
USED, ALLOWED = f"hami_vgpu_memory_used_bytes{OF_NAMESPACE}", f"hami_vgpu_memory_limit_bytes{OF_NAMESPACE}"
HAMIS = {
    "Physical GPUs": f"count({LIMIT})",
    "Total GPU memory": f"sum({LIMIT})",
    "Allocated GPU memory": f"sum({ALLOCATED})",
    "GPU memory allocated %": f"100 * sum({ALLOCATED}) / sum({LIMIT})",
    "Shared containers": f"sum(hami_gpu_shared_count{OF_NODE})",
    "Host GPU memory used": f"hami_host_gpu_memory_used_bytes and on (device_uuid) {LIMIT}",
    "Host GPU utilization": f"hami_host_gpu_utilization_ratio and on (device_uuid) {LIMIT}",
    "GPU memory: allocated vs limit A": f"sum by (node) ({ALLOCATED})",
    "GPU memory: allocated vs limit B": f"sum by (node) ({LIMIT})",
    "Node GPU memory allocated ratio": f"hami_node_gpu_memory_allocated_ratio{OF_NODE}",
    "GPU core allocated ratio": f"hami_gpu_core_allocated_ratio{OF_NODE}",
    "GPU shared count per device": f"hami_gpu_shared_count{OF_NODE}",
    "vGPU memory: used vs limit A": USED,
    "vGPU memory: used vs limit B": ALLOWED,
    "Container device utilization": f"hami_container_device_utilization_ratio{OF_NAMESPACE}",
    "vGPU memory used % of limit": f"100 * {USED} / {ALLOWED}",
    "Top 10 containers by vGPU memory": f"topk(10, {USED})",
}
"""What the panels of HAMi's own dashboard (uid hami-vgpu-metrics, 2.10) ask, with all nodes and namespaces chosen."""
REGION = Path(__file__).parents[1] / "vectors/regions/v1.2-two-cards.bin.xz"
GIB, CONTEXT = 1 << 30, 445_644_800


def uses(answer: Answer) -> None:
    """The container's processes have memory of two cards, as a real library wrote it down."""
    inside = Path(answer.edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
    folder = next(one.host_path for one in answer.edits.mounts if one.container_path == str(inside.parent))
    (Path(folder) / inside.name).write_bytes(lzma.decompress(REGION.read_bytes()))


async def test_every_panel_of_hamis_own_dashboard_has_data_and_says_what_is_true(programs, tmp_path):
    async with live("dgx-h100", scheduler={"hamiMetrics": True}, hamiMetrics=True, usageSeconds=0.1) as node:
        with scraping(node, programs, tmp_path) as server:
            await node.run(pod_of(node, "busy", memory=4096, count=2))
            uses(node.answers["busy"])
            await until(server, "hami_vgpu_memory_used_bytes > 0", 2)
            await until(server, "hami_gpu_shared_count == 1", 2)
            empty = await drawn(server, HAMIS)
            told = {name: [float(one["value"][1]) for one in server.query(query)] for name, query in HAMIS.items()}
            nodes = {one["metric"]["node"] for one in server.query(f"sum by (node) ({LIMIT})")}

    assert empty == set()
    assert told["Physical GPUs"] == [8]
    assert told["Allocated GPU memory"] == [2 * 4096 * 1024**2]
    assert told["Shared containers"] == [2]
    assert sum(told["GPU core allocated ratio"]) == 20
    assert (len(told["Host GPU memory used"]), len(told["Host GPU utilization"])) == (8, 8)
    assert sorted(told["vGPU memory: used vs limit A"]) == [GIB + CONTEXT, 2 * GIB + CONTEXT]
    assert told["Top 10 containers by vGPU memory"] == [2 * GIB + CONTEXT, GIB + CONTEXT]
    assert nodes == {node.stage.node}
    shutil.rmtree(tmp_path / "data")


QUIET = {
    "hami-plugin: Containers whose devices the kubelet does not confirm A",
    "hami-plugin: Refusals B",
    "hami-plugin-scheduler: Certificate expires in A",
}
"""Panels that show nothing here: the kubelet confirms and starts its containers; the scheduler has no certificate."""


async def until(server: Prometheus, query: str, series: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(await asyncio.to_thread(server.query, query)) < series:  # noqa: ASYNC110  # it is another process
            await asyncio.sleep(0.5)


async def drawn(server: Prometheus, wanted: dict[str, str]) -> set[str]:
    """The panels without data, once no others get any."""
    empty = set(wanted)
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            while empty - QUIET:
                empty = {name for name in empty if not await asyncio.to_thread(server.query, wanted[name])}
                await asyncio.sleep(0.5)
    return {name for name in wanted if name in empty}
