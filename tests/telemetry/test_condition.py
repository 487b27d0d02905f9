"""The daemon's own state as metrics."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from hami_plugin.allocation.settlement import lock_age
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.telemetry.metrics import ReadinessMetrics

NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)


def locked(text: str) -> float:
    node = LiveNode()
    node.deliver(NodeView(name="n1", annotations={NODE_LOCK: text} if text else {}))
    return lock_age(node, NOW)


def test_each_component_is_ready_or_not() -> None:
    registry = CollectorRegistry()
    registry.register(ReadinessMetrics(lambda: {"api server": "", "driver acme": "NoLibrary: not there"}, lambda: 7.0))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"hami_plugin_{name}", labels)

    assert value("component_ready", component="api server") == 1
    assert value("component_ready", component="driver acme") == 0
    assert value("node_lock_age_seconds") == 7


def test_the_age_of_the_lock_is_told_by_the_time_in_it() -> None:
    assert locked("2026-08-21T10:06:12Z,demo,pod") == 300
    assert locked("2026-08-21T10:11:02Z") == 10


def test_no_lock_a_lock_of_the_future_and_one_that_cannot_be_read_have_no_age() -> None:
    assert [locked(""), locked("2026-08-21T10:11:13Z,demo,pod"), locked("yesterday")] == [0, 0, 0]
    assert lock_age(LiveNode(), NOW) == 0
