"""What the scheduler process counts, for Prometheus."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.scheduler.engine.filter import UNREGISTERED
from hami_plugin.scheduler.engine.reasons import Reason, parse_summary, plain
from hami_plugin.telemetry.metrics import ApiCallMetrics, gauge

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
