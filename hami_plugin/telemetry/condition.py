"""How the daemon itself is: which of its components are ready, and for how long a scheduler has held the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_plugin.telemetry.gauges import gauge


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
