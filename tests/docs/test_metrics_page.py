"""The page of metrics is made from the collectors of the daemon and of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from hami_plugin.config.changes import Reloads
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.node_status.cost import CostAccount
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.faults import FaultLog
from hami_plugin.node_status.usage import Loads, Pods, UsageReader
from hami_plugin.scheduler.extender.metrics import METRICS, ZONE_LABEL, SchedulerMetrics
from hami_plugin.telemetry.metrics import (
    ClaimMetrics,
    CostMetrics,
    DeviceLoadMetrics,
    DeviceMetrics,
    DeviceUserMetrics,
    FaultMetrics,
    HamiUsageMetrics,
    Metrics,
    PartitionMetrics,
    PriorityMetrics,
    ReadinessMetrics,
    RemediationMetrics,
    ResizeMetrics,
    UsageMetrics,
)
from hami_plugin.telemetry.process_metrics import ConfigurationMetrics
from tests.support.pages import generated

PAGE = "docs/reference/metrics.md"
PREFIX = "hami_"


class Nobody:
    """Takes no Events: none are written here."""

    async def create_event(self, *_subject: object, **_event: object) -> None: ...


def daemon() -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry, version="")
    registry.register(ReadinessMetrics(dict, lambda: 0.0))
    registry.register(DeviceMetrics(tuple, lambda _held: None, lambda: True))
    none = Pods(held=tuple, known=lambda: None)
    reader = UsageReader([], none, host=HostFiles(paths=HostPaths()), interval=1.0)
    registry.register(UsageMetrics(reader))
    registry.register(ResizeMetrics(dict))
    registry.register(RemediationMetrics(dict))
    registry.register(DeviceLoadMetrics(tuple, Loads(kept=1.0), hami_node="node"))
    registry.register(DeviceUserMetrics(tuple, Loads(kept=1.0), lambda _uid: None))
    registry.register(PriorityMetrics(tuple))
    registry.register(CostMetrics(CostAccount))
    registry.register(PartitionMetrics(()))
    registry.register(ConfigurationMetrics(Reloads))
    registry.register(FaultMetrics(FaultLog(tuple, lambda _uid: None, EventRecorder(Nobody())), tuple))
    registry.register(ClaimMetrics(tuple))
    registry.register(HamiUsageMetrics(reader))
    return registry


def scheduler() -> CollectorRegistry:
    registry = CollectorRegistry()
    SchedulerMetrics(registry, version="")
    registry.register(ConfigurationMetrics(Reloads))
    return registry


def rows(registry: CollectorRegistry) -> Iterator[str]:
    """One for each metric: its name as queries have it, its labels, its type and its help."""
    for collector in registry._collector_to_names:
        counted = isinstance(collector, MetricWrapperBase)
        for metric in collector.describe() if counted else collector.collect():
            if metric.name.startswith(PREFIX):
                name = f"{metric.name}_total" if metric.type == "counter" else metric.name
                labels = ", ".join(f"`{label}`" for label in (collector if counted else metric)._labelnames) or "none"
                yield f"| `{name}` | {labels} | {metric.type} | {metric.documentation} |\n"


def hamis() -> Iterator[str]:
    """The same of the scheduler's metrics under HAMi's names, which no registry has."""
    for name, (text, labels) in METRICS.items():
        yield f"| `{name}` | {', '.join(f'`{label}`' for label in (*labels, ZONE_LABEL))} | gauge | {text} |\n"


@pytest.mark.parametrize(("process", "registry", "more"), [("daemon", daemon, tuple), ("scheduler", scheduler, hamis)])
def test_the_table_of_metrics_is_the_collectors_own(process, registry, more):
    table = "| metric | labels | type | meaning |\n|---|---|---|---|\n" + "".join(sorted([*rows(registry()), *more()]))
    wanted = f"\n{table}\n"

    assert len(table.splitlines()) > 10
    assert generated(PAGE, process, wanted) == wanted, "write it anew: UPDATE_DOCS=1 make test"
