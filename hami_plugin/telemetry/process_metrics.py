"""The metrics that the daemon's process and the scheduler's have in common: API calls, connections, configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.model.ports import NullObserver
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


class ApiCallMetrics(NullObserver):
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


class ScrapedMetrics(Collector):
    """What another object shows at the moment of a scrape."""

    def __init__(self, shown: Callable[[], Iterable[Metric]]) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        yield from self._shown()


class Reloaded(Protocol):
    """What became of the changes of the configuration."""

    @property
    def generation(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def refusals(self) -> Mapping[str, int]: ...


class ConfigurationMetrics(Collector):
    """Which configuration is in force, and what was refused."""

    def __init__(self, reloads: Callable[[], Reloaded]) -> None:
        self._reloads = reloads

    def collect(self) -> Iterator[Metric]:
        now = self._reloads()
        yield gauge(
            "config_generation",
            "Counts the configurations that have been in force since the start, the first included.",
            (),
            [((), now.generation)],
        )
        yield gauge(
            "config_refused",
            "1 with the reason while the last change of the configuration files is refused, else 0.",
            ("reason",),
            [((now.reason,), 1)] if now.reason else [(("",), 0)],
        )
        refusals = CounterMetricFamily(
            "hami_plugin_config_refusals", "Changes of the configuration that were refused.", labels=("reason",)
        )
        for reason, count in now.refusals.items():
            refusals.add_metric((reason,), count)
        yield refusals
