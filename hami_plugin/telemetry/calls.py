"""What every process of the project counts alike: calls to the API server, and connections to its own ports."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from hami_plugin.model.ports import NullObserver
from hami_plugin.telemetry.connections import WHYS

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
