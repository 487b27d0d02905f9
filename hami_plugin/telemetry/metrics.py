"""What the daemon counts, and what it has, for Prometheus.

Events are counted as they happen. Drivers and endpoints are rendered from their last state at each scrape.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import EndpointState
from hami_plugin.telemetry.calls import BUCKETS, ApiCalls
from hami_plugin.telemetry.gauges import gauge


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
