"""What the scheduler process counts, and what HAMi's scheduler counts, for Prometheus."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.process.concurrency import Pausing, run_in_slices
from hami_plugin.scheduler.engine.devices import DeviceState, Reason, parse_summary, plain, sum_grants
from hami_plugin.scheduler.engine.filter import UNREGISTERED, OccupiedNode
from hami_plugin.scheduler.extender.cache import SchedulerCache
from hami_plugin.sdk import Family, Resources
from hami_plugin.telemetry.process_metrics import ApiCallMetrics, gauge

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OTHER = "Other"
_BY_TEXT = {UNREGISTERED: "NodeUnregistered"}
_REASONS = frozenset(map(str, Reason))


class SchedulerMetrics(ApiCallMetrics):
    """Counts calls that come in, and those that go out to the API server."""

    def __init__(
        self, registry: CollectorRegistry, *, version: str, log_lines_dropped: Callable[[], int] = lambda: 0
    ) -> None:
        super().__init__(registry)
        self._requests = Counter(
            "hami_plugin_scheduler_requests",
            "Calls of kube-scheduler and the API server; answered, refused, or why there was no answer.",
            ("path", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "hami_plugin_scheduler_request_seconds",
            "Time to answer a call, from its first byte.",
            ("path",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._running = Gauge(
            "hami_plugin_scheduler_requests_in_progress", "Calls that wait for an answer.", ("path",), registry=registry
        )
        self._nodes = Counter(
            "hami_plugin_scheduler_nodes_refused",
            "Nodes that a filter refused, by reason. A node may have several.",
            ("reason",),
            registry=registry,
        )
        self._expiry = Gauge(
            "hami_plugin_scheduler_certificate_expiry_timestamp_seconds",
            "When the presented certificate expires, in seconds since 1970; 0 without TLS.",
            registry=registry,
        )
        self._reloads = Counter(
            "hami_plugin_scheduler_certificate_reloads",
            "New certificates found: ok when it is presented, failed when the old one stays.",
            ("outcome",),
            registry=registry,
        )
        self._stale = Gauge(
            "hami_plugin_scheduler_certificate_stale",
            "1 while the files hold a pair that cannot be presented, and an older one is.",
            registry=registry,
        )
        for outcome in ("ok", "failed"):
            self._reloads.labels(outcome)
        registry.register(_Process(version, log_lines_dropped))
        ProcessCollector(registry=registry)

    def began(self, path: str) -> None:
        """A call has come in."""
        self._running.labels(path).inc()

    def ended(self, path: str, outcome: str, seconds: float) -> None:
        """It was answered, or given up."""
        self._running.labels(path).dec()
        self._requests.labels(path, outcome).inc()
        self._seconds.labels(path).observe(seconds)

    def refused(self, failed: Mapping[str, str]) -> None:
        """A filter's ``FailedNodes``: the reason for each node. What a text quotes of a pod is no reason."""
        for why, nodes in Counts(failed.values()).items():
            for reason in _REASONS & {*map(plain, parse_summary(why))} or [
                _BY_TEXT.get(why.partition(" (")[0], _OTHER)
            ]:
                self._nodes.labels(reason).inc(nodes)

    def certificate(self, expires: float) -> None:
        """The certificate that is presented now expires then, in seconds since 1970."""
        self._expiry.set(expires)

    def reloaded(self, outcome: str) -> None:
        """A new certificate was found, and is presented (``ok``) or not (``failed``)."""
        self._reloads.labels(outcome).inc()
        self._stale.set(outcome != "ok")


class _Process(Collector):
    """What is known of the process itself."""

    def __init__(self, version: str, log_lines_dropped: Callable[[], int]) -> None:
        self._version = version
        self._log_lines_dropped = log_lines_dropped

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "Always 1.", ("version",), [((self._version,), 1)])
        yield CounterMetricFamily(
            "hami_plugin_log_lines_dropped", "Log lines that nobody read in time.", value=self._log_lines_dropped()
        )


MIB = 1 << 20
ZONE_LABEL, ZONE = "zone", "vGPU"
"""HAMi's constant label of all of these."""

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its own."""

_DEVICE = ("node", "device_uuid", "device_index", "device_type")
_INSTANCE = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "placement_start", "placement_size")
_CONTAINER = ("namespace", "node", "pod", "container_index", "device_uuid")

METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hami_gpu_memory_limit_bytes": ("Memory that the device has for pods.", _DEVICE),
    "hami_gpu_core_limit_ratio": ("Cores that the device has for pods, in percent.", _DEVICE),
    "hami_gpu_memory_allocated_bytes": ("Memory of the device that pods have.", (*_DEVICE, "device_cores")),
    "hami_gpu_core_allocated_ratio": ("Cores of the device that pods have, in percent.", _DEVICE),
    "hami_gpu_shared_count": ("Shares of the device that containers have.", _DEVICE),
    "hami_node_gpu_overview": (
        "As hami_gpu_memory_allocated_bytes.",
        (*_DEVICE, "device_cores", "device_memory_limit"),
    ),
    "hami_node_gpu_memory_allocated_ratio": ("Share of the device's memory that pods have, from 0 to 1.", _DEVICE),
    "hami_node_gpu_mig_instance_info": (
        "Always 1, for each instance that a container has.",
        (*_DEVICE[:3], *_INSTANCE),
    ),
    "hami_vgpu_memory_allocated_bytes": ("Memory of the device that the container has.", _CONTAINER),
    "hami_vgpu_core_allocated_ratio": ("Cores of the device that the container has, in percent.", _CONTAINER),
    "hami_resource_quota_used": (
        "What the namespace's pods have of the resource: MiB or cores.",
        ("namespace", "quota_name", "limit"),
    ),
    "hami_resource_quota_limit": ("The namespace's quota of the resource, as written.", ("namespace", "quota_name")),
}
"""What each means, and its labels beside the zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeLines:
    """A node's lines by metric, and what they were made of."""

    source: OccupiedNode
    lines: Mapping[str, bytes]


class HamiSchedulerMetrics:
    """What the scheduler knows of devices, pods and quotas, under the names and labels of HAMi's scheduler 2.10.

    Renders the ``cache`` of the moment, while it is ``wanted``. HAMi's ratios go to 100, but for that of a device's
    memory, which goes to 1.

    In a large cluster a registry would hold up decisions for seconds: there are some seventy series on each node. So
    a node's lines are kept until something changes there, and all is put together with pauses.
    """

    def __init__(self, cache: Callable[[], SchedulerCache], wanted: Callable[[], bool]) -> None:
        self._cache = cache
        self._wanted = wanted
        self._nodes: Mapping[str, _NodeLines] = {}

    async def text(self) -> bytes:
        """All of it, as both of Prometheus' formats have it; empty while it is not wanted."""
        if self._wanted():
            return await run_in_slices(self._rendering(self._cache()))
        self._nodes = {}
        return b""

    def _rendering(self, cache: SchedulerCache) -> Pausing[bytes]:
        nodes: dict[str, _NodeLines] = {}
        for name in list(cache.nodes.node_infos):
            source = cache.occupied(name)
            if source and source.result.pools:
                known = self._nodes.get(name)
                still = known is not None and known.source is source
                nodes[name] = known if known and still else _NodeLines(source=source, lines=_lines(_of_node(source)))
            yield
        self._nodes = nodes
        quotas: list[tuple[str, Sample]] = []
        for namespace in cache.quotas.namespaces:
            quotas += _of_quota(cache, namespace)
            yield
        of_quotas = _lines(quotas)
        parts: list[bytes] = []
        for name, (meaning, _labels) in METRICS.items():
            parts.append(f"# HELP {name} {meaning}\n# TYPE {name} gauge\n".encode())
            parts += [node.lines[name] for node in nodes.values() if name in node.lines]
            parts.append(of_quotas.get(name, b""))
            yield
        return b"".join(parts)


def _lines(samples: Iterable[tuple[str, Sample]]) -> Mapping[str, bytes]:
    """The samples of each metric as lines."""
    lines: dict[str, list[str]] = {}
    for name, (values, number) in samples:
        labels = zip((*METRICS[name][1], ZONE_LABEL), (*values, ZONE), strict=True)
        text = ",".join([f'{label}="{_escaped(value)}"' for label, value in labels])
        lines.setdefault(name, []).append(f"{name}{{{text}}} {number!r}\n")
    return {name: "".join(found).encode("utf-8", "replace") for name, found in lines.items()}


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _of_node(source: OccupiedNode) -> Iterator[tuple[str, Sample]]:
    node = source.node_info.node.name
    for family in source.families:
        pool = source.result.pools.get(family.resources.device_type)
        states = {state.uuid: state for state in pool.states} if pool else {}
        for state in states.values():
            yield from _of_device(node, family.resources, state)
        yield from _of_instances(node, family, states, source)
        yield from _of_containers(node, family, states, source)


def _of_device(node: str, resources: Resources, state: DeviceState) -> Iterator[tuple[str, Sample]]:
    device = (node, state.uuid, str(state.index), state.info.type)
    cores = str(resources.core_count(state.info.devcore))
    memory = float(state.memory * MIB)
    yield "hami_gpu_memory_limit_bytes", (device, float(state.info.devmem * MIB))
    yield "hami_gpu_core_limit_ratio", (device, _cores(resources, state, state.info.devcore))
    yield "hami_gpu_memory_allocated_bytes", ((*device, cores), memory)
    yield "hami_gpu_core_allocated_ratio", (device, _cores(resources, state, state.cores))
    yield "hami_gpu_shared_count", (device, float(state.slots))
    yield "hami_node_gpu_overview", ((*device, cores, str(state.info.devmem)), memory)
    if state.info.devmem:
        yield "hami_node_gpu_memory_allocated_ratio", (device, state.memory / state.info.devmem)


def _cores(resources: Resources, state: DeviceState | None, cores: int) -> float:
    """Cores in the unit of HAMi's ratios: of a device's own compute units a percentage, rounded up."""
    whole = state.info.devcore if state else 0
    if resources.cores_are_units and whole:
        return float(ceil(100 * cores / whole))
    return float(resources.core_count(cores))


def _of_instances(
    node: str, family: Family, states: Mapping[str, DeviceState], source: OccupiedNode
) -> Iterator[tuple[str, Sample]]:
    for entry in source.entries:
        for one in family.rules.instances(entry.pod) if family.resources.device_type in entry.held else ():
            if state := states.get(one.device):
                ids = (str(one.gpu_instance), str(one.compute_instance), str(one.part.start), str(one.part.size))
                labels = (node, one.device, str(state.index), one.uuid, one.part.profile, *ids)
                yield "hami_node_gpu_mig_instance_info", (labels, 1.0)


def _of_containers(
    node: str, family: Family, states: Mapping[str, DeviceState], source: OccupiedNode
) -> Iterator[tuple[str, Sample]]:
    for entry in source.entries:
        held = entry.held.get(family.resources.device_type)
        for position, piece in enumerate(held.pieces if held else ()):
            for grant in sum_grants([piece], bits=family.resources.cores_are_bits):
                labels = (entry.pod.namespace, node, entry.pod.name, str(position), grant.uuid)
                share = _cores(family.resources, states.get(grant.uuid), grant.cores)
                yield "hami_vgpu_memory_allocated_bytes", (labels, float(grant.memory * MIB))
                yield "hami_vgpu_core_allocated_ratio", (labels, share)


def _of_quota(cache: SchedulerCache, namespace: str) -> Iterator[tuple[str, Sample]]:
    quota = cache.quota(namespace, without="")
    for name, limit in quota.limits.items():
        yield "hami_resource_quota_used", ((namespace, name, str(limit)), float(quota.used.get(name, 0)))
        yield "hami_resource_quota_limit", ((namespace, name), float(limit))
