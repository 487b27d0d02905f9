"""Calls to the API server, counted and timed alike by every process of the project."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from hami_plugin.node.ports import NullObserver

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""


class ApiCalls(NullObserver):
    """An observer of these calls. What else a process counts, it adds."""

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

    def api_call(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        self._calls.labels(verb, kind, outcome).inc()
        self._call_seconds.labels(verb, kind).observe(seconds)
        self._unreadable.labels(kind.partition("/")[0])  # from 0 on, so that a rate sees the first one

    def unreadable(self, kind: str) -> None:
        self._unreadable.labels(kind).inc()
