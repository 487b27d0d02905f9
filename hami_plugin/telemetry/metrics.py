"""What the daemon counts, and what it has, for Prometheus.

Events are counted as they happen. Drivers and endpoints are rendered from their last state at each scrape.
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
    """One gauge of this daemon: its samples are values of the labels, and a number."""
    family = GaugeMetricFamily(f"hami_plugin_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""


class ApiCalls(NullObserver):
    """An observer of both. What else a process counts, it adds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "hami_plugin_api_calls",
            "Calls to the API server, by HTTP status or unreachable.",
            ("verb", "kind", "outcome"),
            registry=registry,
        )
        self._call_seconds = Histogram(
            "hami_plugin_api_call_seconds",
            "Time of a call to the API server.",
            ("verb", "kind"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._unreadable = Counter(
            "hami_plugin_api_objects_unreadable",
            "Objects from the API server that could not be read, or in part only. The log names them.",
            ("kind",),
            registry=registry,
        )
        self._dropped = Counter(
            "hami_plugin_http_connections_dropped",
            "Connections to a port of ours that were closed before their time, and why.",
            ("why",),
            registry=registry,
        )
        for why in WHYS:  # from 0 on, so that a rate sees the first one
            self._dropped.labels(why)

    def api_call(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        self._calls.labels(verb, kind, outcome).inc()
        self._call_seconds.labels(verb, kind).observe(seconds)
        self._unreadable.labels(kind.partition("/")[0])  # from 0 on, so that a rate sees the first one

    def connection_dropped(self, why: str) -> None:
        """A connection to one of our own ports was closed before its time."""
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
            "hami_plugin_allocations", "Allocate calls; ok, or why not.", ("resource", "outcome"), registry=registry
        )
        self._allocate_seconds = Histogram(
            "hami_plugin_allocate_seconds",
            "Time to answer Allocate.",
            ("resource",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._unchecked = Counter(
            "hami_plugin_allocations_unchecked",
            "Allocate calls beyond what a device had left, as far as was known without the API server.",
            ("resource",),
            registry=registry,
        )
        self._starts = Counter(
            "hami_plugin_container_starts",
            "PreStartContainer calls; ok, or why not.",
            ("resource", "outcome"),
            registry=registry,
        )
        self._mistakes = Counter(
            "hami_plugin_vendor_mistakes",
            "Unexpected failures of a vendor's own code, by what it was asked for.",
            ("vendor", "step"),
            registry=registry,
        )
        registry.register(_State(self._snapshots, self._endpoints, clock, version, log_lines_dropped))
        ProcessCollector(registry=registry)

    def allocation(self, resource: str, outcome: str, seconds: float) -> None:
        self._allocations.labels(resource, outcome).inc()
        self._allocate_seconds.labels(resource).observe(seconds)
        self._unchecked.labels(resource)  # from 0 on: a series that begins with its first count shows no increase

    def unchecked(self, resource: str) -> None:
        self._unchecked.labels(resource).inc()

    def container_start(self, resource: str, outcome: str) -> None:
        self._starts.labels(resource, outcome).inc()

    def mistake(self, vendor: str, step: str) -> None:
        self._mistakes.labels(vendor, step).inc()

    def snapshot(self, vendor: str, snapshot: Snapshot) -> None:
        self._snapshots[vendor] = snapshot
        self._mistakes.labels(vendor, "driver")  # there from the start, so that a rate sees the first one

    def endpoint(self, state: EndpointState) -> None:
        before = self._endpoints.get(state.resource)
        since = self._clock() if before is None or state.registrations > before.state.registrations else before.since
        self._endpoints[state.resource] = _Endpoint(state=state, since=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """An endpoint's last state, and when it registered last."""

    state: EndpointState
    since: float


class _State(Collector):
    """Renders the present state. A scrape runs on the event loop, as every change does, and so sees whole values."""

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
            "hami_plugin_log_lines_dropped", "Log lines that nobody read in time.", value=self._log_lines_dropped()
        )
        yield from self._drivers()
        yield from self._devices()
        yield from self._kubelet()

    def _drivers(self) -> Iterator[Metric]:
        yield gauge(
            "driver_ready",
            "1 while the vendor's driver answers; else why not.",
            ("vendor", "reason"),
            [((name, "" if seen.ready else seen.reason), seen.ready) for name, seen in self._snapshots.items()],
        )

    def _devices(self) -> Iterator[Metric]:
        """A driver may list one device twice, and Prometheus refuses a whole scrape over a series that comes twice."""
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
            "1 while registered, the kubelet's stream is open and it has a list.",
            label,
            [((s.resource,), s.ready) for s in states],
        )
        yield gauge("streams", "Open ListAndWatch streams.", label, [((s.resource,), s.streams) for s in states])
        yield gauge(
            "registration_age_seconds",
            "Time since the last registration with the kubelet.",
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
    """``problems`` are what the readiness probe tells, by component; ``locked`` is the node lock's age in seconds."""

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
            "For how long a scheduler has held the node's lock; 0 while nobody does.",
            (),
            [((), self._locked())],
        )


MIB = 1 << 20
NAMES = ("vendor", "family", "uuid", "index")
"""The labels that every series of a device has, so that any two can be divided without more words."""
HOLDER = ("namespace", "pod", "container")


class Devices(Collector):
    """``confirmed`` is what the kubelet says of a hand-out; None where it does not tell."""

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
        said = {held.key: (held, self._confirmed(held)) for held in handed}.values()
        yield gauge(
            "container_confirmed",
            "1 if the kubelet's PodResources says that the container has what was handed out to it, else 0.",
            (*HOLDER, "resource"),
            [((*_holder(held), held.resource), yes) for held, yes in said if yes is not None],
        )
        yield gauge(
            "pod_resources_readable",
            "0 after the kubelet's PodResources left a question open, else 1.",
            (),
            [((), self._readable())],
        )


def _descriptions(devices: Iterable[Occupied]) -> Iterator[Metric]:
    yield gauge(
        "device_info",
        "Always 1: what the device is.",
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
        "Always 1: the device's state, and the reason if it is not well.",
        (*NAMES, "health", "reason"),
        [((*_names(one), one.device.health.value, one.device.reason), 1) for one in devices],
    )


def _amounts(devices: Iterable[Occupied]) -> Iterator[Metric]:
    amounts: Sequence[tuple[str, str, Callable[[Occupied], float]]] = (
        (
            "memory_bytes",
            "Memory that the device has; 0 when the driver does not tell.",
            lambda one: one.device.memory * MIB,
        ),
        ("memory_advertised_bytes", "Memory that can be given to pods.", lambda one: one.memory * MIB),
        ("memory_allocated_bytes", "Memory that pods have.", lambda one: one.memory_taken * MIB),
        ("cores", "Cores as they are advertised: percent, or the family's own number.", lambda one: one.cores),
        (
            "cores_allocated_ratio",
            "Share of the device's cores that is reserved for pods.",
            lambda one: one.cores_taken,
        ),
        ("shares", "How many containers may have a part of the device.", lambda one: one.shares),
        ("shares_allocated", "How many of the shares are given to containers.", lambda one: one.handed),
    )
    for name, text, amount in amounts:
        yield gauge(f"device_{name}", text, NAMES, [(_names(one), amount(one)) for one in devices])


def _portions(given: Sequence[tuple[Occupied, Portion]]) -> Iterator[Metric]:
    labels = (*NAMES, *HOLDER)
    yield gauge(
        "container_memory_bytes",
        "Memory of the device that the container may use.",
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
