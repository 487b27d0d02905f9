"""The daemon's metrics for Prometheus.

Counters count events as they happen. Gauges are rendered from the current state at each scrape.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.allocation.identity import Held
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import EndpointState, NullObserver
from hami_plugin.node_status.occupancy import Occupied, Portion
from hami_plugin.telemetry.connections import WHYS


def gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    """One gauge of this daemon. A sample has the label values and a number."""
    family = GaugeMetricFamily(f"hami_plugin_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""


class ApiCalls(NullObserver):
    """Calls to the API server and dropped connections, counted in the daemon and in the scheduler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "hami_plugin_api_calls",
            "API server requests by outcome: the HTTP status, or unreachable.",
            ("verb", "kind", "outcome"),
            registry=registry,
        )
        self._call_seconds = Histogram(
            "hami_plugin_api_call_seconds",
            "Duration of API server requests in seconds.",
            ("verb", "kind"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._unreadable = Counter(
            "hami_plugin_api_objects_unreadable",
            "Objects from the API server that could not be read, or only in part. The log names them.",
            ("kind",),
            registry=registry,
        )
        self._dropped = Counter(
            "hami_plugin_http_connections_dropped",
            "Connections to this process's ports that were closed early, by reason.",
            ("why",),
            registry=registry,
        )
        for why in WHYS:  # starts at 0, so that a rate sees the first increment
            self._dropped.labels(why)

    def api_call(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        self._calls.labels(verb, kind, outcome).inc()
        self._call_seconds.labels(verb, kind).observe(seconds)
        self._unreadable.labels(kind.partition("/")[0])  # starts at 0, so that a rate sees the first increment

    def connection_dropped(self, why: str) -> None:
        """A connection to one of our own ports was closed early."""
        self._dropped.labels(why).inc()

    def unreadable(self, kind: str) -> None:
        self._unreadable.labels(kind).inc()


class Metrics(ApiCalls):
    """The daemon's ``Observer``. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        log_lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(registry)
        self._snapshots: dict[str, Snapshot] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        self._clock = clock
        self._allocations = Counter(
            "hami_plugin_allocations",
            "Allocate calls by outcome: ok, or the reason of the refusal.",
            ("resource", "outcome"),
            registry=registry,
        )
        self._allocate_seconds = Histogram(
            "hami_plugin_allocate_seconds",
            "Duration of Allocate calls in seconds.",
            ("resource",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._unchecked = Counter(
            "hami_plugin_allocations_unchecked",
            "Allocate calls that were served although they seemed to exceed a device, while the API server was "
            "unreachable.",
            ("resource",),
            registry=registry,
        )
        self._starts = Counter(
            "hami_plugin_container_starts",
            "PreStartContainer calls by outcome: ok, or the reason of the refusal.",
            ("resource", "outcome"),
            registry=registry,
        )
        self._mistakes = Counter(
            "hami_plugin_vendor_mistakes",
            "Unexpected errors in a vendor's code, by step.",
            ("vendor", "step"),
            registry=registry,
        )
        registry.register(_State(self._snapshots, self._endpoints, clock, version, log_lines_dropped))
        ProcessCollector(registry=registry)

    def allocation(self, resource: str, outcome: str, seconds: float) -> None:
        self._allocations.labels(resource, outcome).inc()
        self._allocate_seconds.labels(resource).observe(seconds)
        self._unchecked.labels(resource)  # starts at 0: a series that starts with its first count shows no increase

    def unchecked(self, resource: str) -> None:
        self._unchecked.labels(resource).inc()

    def container_start(self, resource: str, outcome: str) -> None:
        self._starts.labels(resource, outcome).inc()

    def mistake(self, vendor: str, step: str) -> None:
        self._mistakes.labels(vendor, step).inc()

    def snapshot(self, vendor: str, snapshot: Snapshot) -> None:
        self._snapshots[vendor] = snapshot
        self._mistakes.labels(vendor, "driver")  # starts at 0, so that a rate sees the first increment

    def endpoint(self, state: EndpointState) -> None:
        before = self._endpoints.get(state.resource)
        since = self._clock() if before is None or state.registrations > before.state.registrations else before.since
        self._endpoints[state.resource] = _Endpoint(state=state, since=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """An endpoint's last state, and the time of its last registration."""

    state: EndpointState
    since: float


class _State(Collector):
    """Renders the current state. A scrape runs on the event loop, as all changes do, so it sees consistent values."""

    def __init__(
        self,
        snapshots: dict[str, Snapshot],
        endpoints: dict[str, _Endpoint],
        clock: Callable[[], float],
        version: str,
        log_lines_dropped: Callable[[], int],
    ) -> None:
        self._snapshots = snapshots
        self._endpoints = endpoints
        self._clock = clock
        self._version = version
        self._log_lines_dropped = log_lines_dropped

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "Always 1.", ("version",), [((self._version,), 1)])
        yield CounterMetricFamily(
            "hami_plugin_log_lines_dropped",
            "Log lines dropped because nothing read the log in time.",
            value=self._log_lines_dropped(),
        )
        yield from self._drivers()
        yield from self._devices()
        yield from self._kubelet()

    def _drivers(self) -> Iterator[Metric]:
        yield gauge(
            "driver_ready",
            "1 while the vendor's driver answers, else 0 with the reason.",
            ("vendor", "reason"),
            [((name, "" if seen.ready else seen.reason), seen.ready) for name, seen in self._snapshots.items()],
        )

    def _devices(self) -> Iterator[Metric]:
        """A driver may list a device twice, and Prometheus rejects a scrape with a duplicate series."""
        seen = {(vendor, d.uuid): d for vendor, seen in self._snapshots.items() for d in seen.devices}
        tally = Tally((vendor, d.health.value, d.reason) for (vendor, _uuid), d in seen.items())
        yield gauge("devices", "Devices by health and reason.", ("vendor", "health", "reason"), tally.items())

    def _kubelet(self) -> Iterator[Metric]:
        states = [endpoint.state for endpoint in self._endpoints.values()]
        now = self._clock()
        label = ("resource",)
        yield gauge(
            "registered", "1 while registered with the kubelet.", label, [((s.resource,), s.registered) for s in states]
        )
        yield gauge(
            "endpoint_ready",
            "1 while the resource is registered, and the kubelet's stream is open and has a list.",
            label,
            [((s.resource,), s.ready) for s in states],
        )
        yield gauge("streams", "Open ListAndWatch streams.", label, [((s.resource,), s.streams) for s in states])
        yield gauge(
            "registration_age_seconds",
            "Seconds since the last registration with the kubelet.",
            label,
            [((name,), now - end.since) for name, end in self._endpoints.items() if end.state.registered],
        )
        registrations = CounterMetricFamily(
            "hami_plugin_registrations", "Registrations with the kubelet.", labels=label
        )
        for state in states:
            registrations.add_metric((state.resource,), state.registrations)
        yield registrations


class Condition(Collector):
    """``problems`` are those of the readiness probe, by component; ``locked`` is the node lock's age in seconds."""

    def __init__(self, problems: Callable[[], Mapping[str, str]], locked: Callable[[], float]) -> None:
        self._problems = problems
        self._locked = locked

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "component_ready",
            "1 while the component is ready; /readyz has the reason if it is not.",
            ("component",),
            [((component,), not problem) for component, problem in self._problems().items()],
        )
        yield gauge(
            "node_lock_age_seconds",
            "Seconds since a scheduler took the node lock; 0 while it is free.",
            (),
            [((), self._locked())],
        )


MIB = 1 << 20
NAMES = ("vendor", "family", "uuid", "index")
"""The labels of every device series, so that any two can be divided."""
HOLDER = ("namespace", "pod", "container")


class Devices(Collector):
    """``confirmed`` is whether the kubelet lists an allocation; None while that is unknown."""

    def __init__(
        self,
        occupied: Callable[[], Iterable[Occupied]],
        confirmed: Callable[[Held], bool | None],
        readable: Callable[[], bool],
    ) -> None:
        self._occupied = occupied
        self._confirmed = confirmed
        self._readable = readable

    def collect(self) -> Iterator[Metric]:
        devices = {(one.source.vendor, one.device.uuid): one for one in self._occupied()}.values()
        yield from _descriptions(devices)
        yield from _amounts(devices)
        yield from _portions([(one, portion) for one in devices for portion in one.portions])
        yield from self._account(portion.held for one in devices for portion in one.portions)

    def _account(self, handed: Iterable[Held]) -> Iterator[Metric]:
        confirmations = {held.key: (held, self._confirmed(held)) for held in handed}.values()
        yield gauge(
            "container_confirmed",
            "1 if the kubelet's PodResources lists the container's allocated devices, else 0.",
            (*HOLDER, "resource"),
            [((*_holder(held), held.resource), yes) for held, yes in confirmations if yes is not None],
        )
        yield gauge(
            "pod_resources_readable",
            "0 after PodResources could not be read, else 1.",
            (),
            [((), self._readable())],
        )


def _descriptions(devices: Iterable[Occupied]) -> Iterator[Metric]:
    yield gauge(
        "device_info",
        "Always 1. The labels describe the device.",
        (*NAMES, "resource", "model", "mode", "pci", "numa"),
        [((*_names(one), *_description(one)), 1) for one in devices],
    )
    yield gauge(
        "device_healthy",
        "1 while the device is offered as healthy.",
        NAMES,
        [(_names(one), one.device.health.offered) for one in devices],
    )
    yield gauge(
        "device_health_info",
        "Always 1. The labels have the device's health, and the reason if it is not healthy.",
        (*NAMES, "health", "reason"),
        [((*_names(one), one.device.health.value, one.device.reason), 1) for one in devices],
    )


def _amounts(devices: Iterable[Occupied]) -> Iterator[Metric]:
    amounts: Sequence[tuple[str, str, Callable[[Occupied], float]]] = (
        (
            "memory_bytes",
            "Total memory of the device; 0 if the driver does not report it.",
            lambda one: one.device.memory * MIB,
        ),
        ("memory_advertised_bytes", "Memory that can be allocated to pods.", lambda one: one.memory * MIB),
        ("memory_allocated_bytes", "Memory allocated to pods.", lambda one: one.memory_taken * MIB),
        ("cores", "Advertised cores: percent, or the device type's own unit.", lambda one: one.cores),
        (
            "cores_allocated_ratio",
            "Share of the device's cores that is reserved for pods.",
            lambda one: one.cores_taken,
        ),
        ("shares", "Containers that can share the device.", lambda one: one.shares),
        ("shares_allocated", "Shares allocated to containers.", lambda one: one.handed),
    )
    for name, text, amount in amounts:
        yield gauge(f"device_{name}", text, NAMES, [(_names(one), amount(one)) for one in devices])


def _portions(given: Sequence[tuple[Occupied, Portion]]) -> Iterator[Metric]:
    labels = (*NAMES, *HOLDER)
    yield gauge(
        "container_memory_bytes",
        "Device memory that the container may use.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.memory * MIB) for one, portion in given],
    )
    yield gauge(
        "container_cores_ratio",
        "Share of the device's cores that is reserved for the container; 0 without a limit.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.cores) for one, portion in given],
    )


def _names(one: Occupied) -> tuple[str, ...]:
    return (one.source.vendor, one.source.family.device_type, one.device.uuid, str(one.device.index))


def _description(one: Occupied) -> tuple[str, ...]:
    device = one.device
    numa = "" if device.numa is None else str(device.numa)
    return (one.source.family.resources.count, device.model, device.mode, device.pci, numa)


def _holder(held: Held) -> tuple[str, ...]:
    return (held.namespace, held.pod, held.container)
