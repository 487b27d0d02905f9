"""A clock that is an hour off, or jumps back: does the daemon decide anything by it?"""

import ast
import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import hami_plugin
import hami_plugin.node_status.registration
from hami_plugin.allocation.settlement import lock_age
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import FamilySource, LiveNode, Registration, Style
from hami_plugin.process.concurrency import Backoff, Watched, cancel
from hami_plugin.protocol.keys import NODE_LOCK
from tests.support.builders import FAMILY, HANDSHAKE, NODE, grant, pod, snapshot
from tests.support.cluster import FakeCluster
from tests.support.node import until

HOUR = timedelta(hours=1)
WALL = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime"}
READERS = {
    "cli/doctor/asking.py": "the ages of locks and reports",
    "cli/doctor/gathering.py": "the ages of locks and reports, and how far this clock is from the API server's",
    "cli/node.py": "the age of a lock and of a report: whether a node is still in use",
    "daemon/app.py": "when the status page was made, for people",
    "daemon/node.py": "the time in a handshake and the age of a lock, for a metric",
    "cluster/client.py": "when an Event happened, for people",
    "scheduler/extender/extender.py": "the time in locks and handshakes, as HAMi writes them",
    "scheduler/extender/app.py": "when the status page was made, for people",
    "scheduler/extender/certificates.py": "whether a certificate has expired",
    "node_status/remediation.py": "when a condition of the node changed, for people",
    "node_status/events.py": "when an Event was written, for the status page",
    "node_status/faults.py": "when a device failed, for people",
    "kubelet/dra.py": "when a device's health was told, for the kubelet",
    "partitions/journal.py": "when a line was written, for people",
    "partitions/manager.py": "when a partition was made and since when it is nobody's; its age, for people",
    "partitions/modes.py": "when a mode was tried, over restarts: the pause is bounded whatever the clock says",
    "telemetry/logs.py": "when a line was written",
    "telemetry/metrics.py": "how long ago a container's last kernel started, as HAMi's monitor says it",
}
"""Who reads the wall clock, and for what. Everything else goes by a clock that never jumps."""


def locked_at(moment: datetime) -> str:
    return f"{moment.isoformat(timespec='seconds')},default,a"


@pytest.mark.scenario("P15")
@pytest.mark.parametrize("off", [-24 * HOUR, -HOUR, timedelta(), HOUR, 24 * HOUR], ids=str)
async def test_a_lock_is_kept_and_released_by_its_owner_and_never_by_its_age(node, off):
    node.cluster.annotate(**{NODE_LOCK: locked_at(datetime.now(UTC) + off)})
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))

    stale, looks = node.reaper._stale, []
    node.reaper._stale = lambda: looks.append(stale()) or looks[-1]
    task = asyncio.create_task(node.reaper.run())

    await until(lambda: len(looks) > 4)
    assert NODE_LOCK in node.cluster.node.annotations
    node.cluster.remove(a)
    await until(lambda: NODE_LOCK not in node.cluster.node.annotations)
    await cancel(task)


@pytest.mark.scenario("P15")
@pytest.mark.parametrize(("off", "age"), [(-HOUR, 3600.0), (HOUR, 0.0)])
def test_a_lock_from_the_future_has_no_age(off, age):
    node, cluster, now = LiveNode(), FakeCluster(), datetime(2026, 8, 21, 10, 0, tzinfo=UTC)
    cluster.attach(live=node)
    cluster.annotate(**{NODE_LOCK: locked_at(now + off)})

    assert lock_age(node, now) == age


@pytest.mark.scenario("P15")
@pytest.mark.parametrize("jump", [-24 * HOUR, -HOUR, HOUR], ids=str)
async def test_a_heartbeat_comes_when_it_is_due_whatever_the_clock_does(monkeypatch, jump):
    turning = [0.0]
    monkeypatch.setattr(hami_plugin.node_status.registration, "time", SimpleNamespace(monotonic=lambda: turning[0]))
    wall = [datetime(2026, 8, 21, 10, 0, tzinfo=UTC)]
    cluster, live = FakeCluster(), LiveNode()
    registration = Registration(
        cluster,
        [FamilySource(family=FAMILY, snapshot=Watched(snapshot(1)))],
        node=live,
        events=EventRecorder(cluster, NODE),
        style=Style(legacy=True, heartbeat=3600.0),
        now=lambda: wall[0],
        backoff=Backoff(first=0.001, cap=0.002),
        together=0.001,
    )
    task = asyncio.create_task(registration.run())
    cluster.attach(live=live)
    await until(lambda: HANDSHAKE in cluster.node.annotations)
    beats = len(cluster.writes)

    wall[0] += jump
    cluster.annotate(theirs="1")
    await asyncio.sleep(0.02)
    assert len(cluster.writes) == beats  # it is not due
    turning[0] = 3600.1
    cluster.annotate(theirs="2")
    await until(lambda: len(cluster.writes) > beats)
    await cancel(task)

    assert cluster.node.annotations[HANDSHAKE].endswith(f"{wall[0]:%Y-%m-%d %H:%M:%S}")


@pytest.mark.scenario("P15")
def test_the_wall_clock_is_read_in_these_places_only():
    root = Path(hami_plugin.__file__).parent
    simulated = {"simulation", "demo"}
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in simulated
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in WALL
        and isinstance(node.value, ast.Name)
        and node.value.id in ("datetime", "time", "date")
    }

    assert found == set(READERS)
