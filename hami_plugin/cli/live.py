"""A live cluster as kubectl's user sees it: nodes, pods and quotas, and what daemons measure. It changes nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from hami_plugin.cli.doctor.cluster import runs_daemon
from hami_plugin.cli.doctor.findings import items, member, text_in
from hami_plugin.cluster.client import NODES, PODS, open_api_calls
from hami_plugin.cluster.credentials import find_credentials
from hami_plugin.cluster.requests import ApiCall, ApiCalls
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import NullObserver
from hami_plugin.model.views import Json, NodeView, PodView, pod_view, quota_view
from hami_plugin.node_status.registration import live_node_view
from hami_plugin.scheduler.engine.devices import DeviceState
from hami_plugin.scheduler.engine.node_info import node_of, pod_allocations, read_node
from hami_plugin.sdk import Family

PORT = 9394
"""Of a daemon whose pod does not name its port."""
MAX_ASKED = 1000
"""Daemons that are asked for usage."""
AT_ONCE = 8
CALL_S = 10.0
PAGE = 500
MAX_PODS = 20_000
USED = "hami_plugin_container_memory_used_bytes"
BUSY = "hami_plugin_container_utilization_ratio"


@asynccontextmanager
async def api_calls(kubeconfig: Path | None, environment: Mapping[str, str]) -> AsyncIterator[ApiCalls]:
    """Calls with the credentials that the daemon would use. ``ConfigError`` where there are none."""
    credentials = await find_credentials(kubeconfig, environment)
    async with open_api_calls(credentials, NullObserver(), CALL_S, connections=8) as calls:
        yield calls


async def list_all(
    calls: ApiCalls, kind: str, path: str, query: Mapping[str, str] | None = None, *, most: int = MAX_PODS
) -> tuple[Json, ...]:
    """All objects of a kind, page by page, up to ``most``. ``ClusterError`` where they are not listed."""
    found: list[Json] = []
    token: str | None = ""
    while token is not None and len(found) < most:
        more = {"limit": str(PAGE), **({"continue": token} if token else {}), **(query or {})}
        answer = await calls.json(ApiCall(verb="list", kind=kind, path=path, query=more))
        found += items(answer, "items")
        token = text_in(member(answer, "metadata"), "continue") or None
    return tuple(found[:most])


async def quota_limits(calls: ApiCalls, namespace: str) -> Mapping[str, str]:
    """The limits of a namespace's quotas; none where these credentials may not list them."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/resourcequotas"
    try:
        found = await list_all(calls, "resourcequotas", path)
    except ClusterError:
        return {}
    return {name: text for one in map(quota_view, found) for name, text in one.hard.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """``hard`` are the limits of the namespace that was asked for. ``daemons`` are their pods, by node."""

    nodes: tuple[NodeView, ...]
    pods: tuple[PodView, ...]
    hard: Mapping[str, str]
    daemons: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one container uses of one device: bytes, and the share of its time; None where nobody measures it."""

    memory: float | None = None
    busy: float | None = None


HolderKey = tuple[str, str, str, str]
"""Namespace, pod, container and a device's UUID."""


async def read_cluster(kubeconfig: Path | None, environment: Mapping[str, str], namespace: str = "") -> LiveCluster:
    """``ClusterError`` or ``ConfigError`` where these credentials do not list nodes and pods."""
    async with api_calls(kubeconfig, environment) as calls:
        return await read_by(calls, namespace)


async def read_by(calls: ApiCalls, namespace: str = "") -> LiveCluster:
    """The same. ``ClusterError`` where the credentials do not list nodes and pods."""
    nodes, pods = await asyncio.gather(list_all(calls, "nodes", NODES), list_all(calls, "pods", PODS))
    hard = await quota_limits(calls, namespace) if namespace else {}
    daemons = {text_in(member(pod, "spec"), "nodeName"): pod for pod in pods if runs_daemon(pod)}
    return LiveCluster(
        nodes=tuple(map(live_node_view, nodes)), pods=tuple(map(pod_view, pods)), hard=hard, daemons=daemons
    )


async def read_usage(
    kubeconfig: Path | None, environment: Mapping[str, str], daemons: Mapping[str, Json]
) -> tuple[Mapping[HolderKey, Measured], Mapping[str, str]]:
    """What the daemons measure, through the API server; and of each node whose daemon does not say it, why."""
    found: dict[HolderKey, Measured] = {}
    why: dict[str, str] = {}
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(calls: ApiCalls, node: str, pod: Json) -> None:
        async with turns:
            try:
                found.update(parse_usage_metrics(await calls.text(_metrics_of(pod))))
            except ClusterError as error:
                why[node] = error.message
            except ValueError as error:
                why[node] = f"its metrics cannot be read: {error}"

    async with api_calls(kubeconfig, environment) as calls:
        await asyncio.gather(*(ask(calls, node, pod) for node, pod in list(daemons.items())[:MAX_ASKED]))
    return found, why


def _metrics_of(pod: Json) -> ApiCall:
    """The daemon's metrics, by the API server's proxy of its pod."""
    meta = member(pod, "metadata")
    namespace, name = text_in(meta, "namespace"), text_in(meta, "name")
    ports = [one for container in items(member(pod, "spec"), "containers") for one in items(container, "ports")]
    port = next((one["containerPort"] for one in ports if isinstance(one.get("containerPort"), int)), PORT)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}:{port}/proxy/metrics"
    return ApiCall(verb="get", kind="pods/proxy", path=path, name=f"{namespace}/{name}")


def parse_usage_metrics(text: str) -> Mapping[HolderKey, Measured]:
    """Usage by container and device, out of a daemon's metrics. ValueError for what are none."""
    numbers: defaultdict[HolderKey, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name in (USED, BUSY) else ():
            labels = sample.labels
            key = (labels["namespace"], labels["pod"], labels["container"], labels["uuid"])
            numbers[key][family.name] = sample.value
    return {key: Measured(memory=one.get(USED), busy=one.get(BUSY)) for key, one in numbers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevices:
    """One device type of a node. Memory in MiB, or in percent; cores in the family's unit."""

    node: str
    device_type: str
    models: tuple[str, ...]
    devices: int
    healthy: int
    shares: tuple[int, int]
    memory: tuple[int, int]
    cores: tuple[int, int]
    unit: str
    problem: str = ""

    @property
    def document(self) -> Mapping[str, Any]:
        """As JSON has it."""
        taken = {"shares": self.shares, "memory": self.memory, "cores": self.cores}
        return {
            "node": self.node,
            "deviceType": self.device_type,
            "models": list(self.models),
            "devices": self.devices,
            "healthy": self.healthy,
            "unit": self.unit,
            "problem": self.problem,
            **{name: {"allocated": one[0], "all": one[1]} for name, one in taken.items()},
        }


def overview(cluster: LiveCluster, families: Sequence[Family]) -> Iterator[NodeDevices]:
    """What each node has, and how much of it pods have, as schedulers read it."""
    named = {family.resources.device_type: family for family in families}
    on: defaultdict[str, list[PodView]] = defaultdict(list)
    for pod in cluster.pods:
        on[node_of(pod)].append(pod)
    for node in sorted(cluster.nodes, key=lambda one: one.name):
        reading = read_node(node, families, on[node.name])
        for device_type, pool in reading.node_info.pools.items():
            family = named[device_type]
            offered = node.allocatable.get(family.resources.count, "0") != "0"
            problems = [*reading.problems, *(() if offered else (f"the kubelet counts 0 {family.resources.count}",))]
            yield _of_pool(node.name, family, pool.states, "; ".join(problems))


def _of_pool(node: str, family: Family, states: Sequence[DeviceState], problem: str) -> NodeDevices:
    return NodeDevices(
        node=node,
        device_type=family.resources.device_type,
        models=tuple(dict.fromkeys(one.info.type for one in states)),
        devices=len(states),
        healthy=sum(one.info.health for one in states),
        shares=(sum(one.slots for one in states), sum(one.info.count for one in states)),
        memory=(sum(one.memory for one in states), sum(one.info.devmem for one in states)),
        cores=(
            sum(family.resources.core_count(one.cores) for one in states),
            sum(family.resources.core_count(one.info.devcore) for one in states),
        ),
        unit="%" if family.resources.memory_in_percent else "MiB",
        problem=problem,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one container has of one device, by its pod's annotations; 0 is no limit."""

    node: str
    device_type: str
    index: int | None
    uuid: str
    namespace: str
    pod: str
    container: str
    memory: int
    cores: int


def holdings(cluster: LiveCluster, families: Sequence[Family], node: str = "") -> Iterator[Holding]:
    """Of all containers that have devices, or of those on one node, by node and device."""
    numbers = {
        (one.name, state.uuid): state.index
        for one in cluster.nodes
        for state in read_node(one, families, ()).node_info.states
    }
    found = [
        one
        for pod in cluster.pods
        if not pod.terminal and node_of(pod) and node in ("", node_of(pod))
        for one in _of_pod(pod, families, numbers)
    ]
    yield from sorted(found, key=lambda one: (one.node, one.device_type, one.index or 0, one.namespace, one.pod))


def _of_pod(pod: PodView, families: Sequence[Family], numbers: Mapping[tuple[str, str], int]) -> Iterator[Holding]:
    for device_type, held in pod_allocations(pod, families, []).items():
        family = next(one for one in families if one.resources.device_type == device_type)
        policy = family.rules.policy
        asking = [one.name for one in pod.containers if policy and policy.request(one) is not None]
        pieces = [piece for piece in held.pieces if piece]
        for container, piece in zip(asking, pieces, strict=False):
            for grant in piece:
                yield Holding(
                    node=node_of(pod),
                    device_type=device_type,
                    index=numbers.get((node_of(pod), grant.uuid)),
                    uuid=grant.uuid,
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container,
                    memory=grant.memory,
                    cores=grant.cores,
                )
