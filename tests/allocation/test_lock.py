"""Is a node lock that nobody needs any more released, and no other?"""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.allocation.settlement import lock_age, release_lock, release_unnamed
from hami_plugin.errors import ClusterError
from hami_plugin.process.concurrency import cancel
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_SUCCESS
from tests.support.builders import TO_ALLOCATE, container, grant, ids, pod
from tests.support.node import SOON, until

LOCK = "2026-08-21T10:11:12+08:00,default,a"


@pytest.fixture
def locked(node):
    node.cluster.annotate(**{NODE_LOCK: LOCK})
    return node


@asynccontextmanager
async def reaping(node):
    task = asyncio.create_task(node.reaper.run())
    try:
        yield
    finally:
        await cancel(task)


def held(node) -> bool:
    return NODE_LOCK in node.cluster.node.annotations


async def some_looks(node):
    await asyncio.sleep(0.05)


async def test_the_owner_releases_it_and_another_pod_does_not(locked):
    assert not await release_lock(locked.cluster, locked.live, "default", "other")
    assert not await release_lock(locked.cluster, locked.live, "other", "a")
    assert held(locked)

    assert await release_lock(locked.cluster, locked.live, "default", "a")
    assert not held(locked)
    assert locked.live.value.annotations == {}


@pytest.mark.parametrize("text", ["2026-08-21T10:11:12Z", "", "x,y", "2026-08-21T10:11:12Z,default,aa"])
async def test_a_lock_that_names_nobody_or_another_is_left(node, text):
    node.cluster.annotate(**{NODE_LOCK: text})

    assert not await release_lock(node.cluster, node.live, "default", "a")
    assert node.cluster.writes == []


async def test_a_lock_without_an_owner_is_released_whoever_was_served(node):
    node.cluster.annotate(**{"toy.io/lock": "2026-08-21T10:11:12Z"})

    assert await release_unnamed(node.cluster, node.live, "toy.io/lock")
    assert "toy.io/lock" not in node.cluster.node.annotations
    assert not await release_unnamed(node.cluster, node.live, "toy.io/lock")


async def test_a_node_that_changes_all_the_time_is_an_error_in_the_end(locked):
    locked.cluster.fail("patch nodes", *[ClusterError("modified", status=409)] * 8)

    with pytest.raises(ClusterError, match="changes too fast") as caught:
        await release_lock(locked.cluster, locked.live, "default", "a", backoff=SOON)

    assert caught.value.temporary
    assert held(locked)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"phase": "Running"},
        {"annotations": {TO_ALLOCATE: ";", BIND_PHASE: PHASE_SUCCESS}},
    ],
    ids=["succeeded", "failed", "running", "has its devices"],
)
async def test_the_lock_of_a_pod_that_waits_for_nothing_is_reaped(locked, changes):
    a = pod("a", pieces=[[grant(0)]])
    annotations = {**a.annotations, **changes.pop("annotations", {})}
    locked.cluster.add(replace(a, annotations=annotations, **changes))

    async with reaping(locked):
        await until(lambda: not held(locked))


async def test_the_lock_of_a_deleted_pod_is_reaped(locked):
    a = locked.cluster.add(pod("a", pieces=[[grant(0)]]))
    locked.cluster.remove(a)

    async with reaping(locked):
        await until(lambda: not held(locked))


async def test_the_lock_of_a_pod_that_waits_is_kept(locked):
    locked.cluster.add(pod("a", pieces=[[grant(0)]]))

    async with reaping(locked):
        await some_looks(locked)

    assert held(locked)
    assert locked.cluster.calls == []


async def test_the_lock_of_a_pod_that_is_not_bound_yet_is_kept(locked):
    async with reaping(locked):
        await some_looks(locked)

    assert held(locked)


@pytest.mark.scenario("A14")
async def test_a_new_lock_for_a_pod_of_the_same_name_is_kept(locked):
    a = locked.cluster.add(pod("a", pieces=[[grant(0)]]))
    locked.cluster.remove(a)
    locked.cluster.annotate(**{NODE_LOCK: "2026-08-21T10:11:13+08:00,default,a"})

    async with reaping(locked):
        await some_looks(locked)

    assert held(locked)


async def test_a_lock_that_is_seen_only_after_its_owner_has_gone_is_released(node):
    view = replace(node.cluster.node, annotations={NODE_LOCK: LOCK})
    node.cluster.set_node(view)
    late = node.live.value
    node.live.deliver(replace(late, annotations={}))
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.remove(a)
    node.live.deliver(late)

    async with reaping(node):
        await until(lambda: not held(node))


async def test_nothing_is_judged_before_the_first_list_of_pods(locked):
    locked.pods.changes.value = False
    locked.pods._pods["a-uid"] = pod("a", pieces=[[grant(0)]], phase="Failed")

    async with reaping(locked):
        await some_looks(locked)

    assert held(locked)


@pytest.mark.parametrize("text", ["2026-08-21T10:11:12Z", "nonsense", "a,b,c"])
async def test_a_lock_that_names_no_pod_is_not_ours_to_judge(node, text):
    node.cluster.annotate(**{NODE_LOCK: text})

    async with reaping(node):
        await some_looks(node)

    assert held(node)


async def test_a_release_that_fails_is_tried_again(locked):
    locked.cluster.add(pod("a", [container(count=1)], [[grant(0)]], phase="Failed"))
    locked.cluster.fail("patch nodes", ClusterError("away"), ClusterError("away", status=500))

    async with reaping(locked):
        await until(lambda: not held(locked))

    assert locked.cluster.calls.count(("patch", "nodes")) == 3


async def test_a_lock_that_is_stale_at_one_look_only_is_kept(locked):
    """Its owner may have been bound between the news of the pod and those of the node."""
    a = locked.cluster.add(pod("a", pieces=[[grant(0)]], phase="Failed"))
    stale, looks = locked.reaper._stale, []

    def look():
        looks.append(stale())
        phase = "Pending" if len(looks) % 2 else "Failed"  # stale at every second look
        locked.cluster.change(a, phase=phase)
        return looks[-1]

    locked.reaper._stale = look
    async with reaping(locked):
        await until(lambda: len(looks) >= 6)

    assert [bool(text) for text in looks[:4]] == [True, False, True, False]
    assert held(locked)


@pytest.mark.scenario("A14", "P15")
@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_clock_that_jumped_neither_frees_a_lock_that_is_needed_nor_keeps_one_that_is_not(node, hours):
    """The time in a lock is another machine's; the owner's state decides."""
    when = (datetime.now(UTC) + timedelta(hours=hours)).isoformat(timespec="seconds")
    node.cluster.annotate(**{NODE_LOCK: f"{when},default,a"})
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))

    async with reaping(node):
        await some_looks(node)
        assert held(node)
        assert lock_age(node.live, datetime.now(UTC)) >= 0
        node.cluster.change(a, phase="Running")
        await until(lambda: not held(node))


@pytest.mark.scenario("P15")
async def test_a_wall_clock_that_jumps_at_each_look_changes_nothing_for_pods(node, monkeypatch):
    jumps = itertools.cycle([0.0, 4e9, 1e9])
    kubelet = node.kubelet()

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: next(jumps))
        for number in range(3):
            one = node.cluster.add(pod(f"p{number}", pieces=[[grant(number)]]))
            await kubelet.admit(one)
            await kubelet.start(one)
            await node.settled()

    assert node.observer.allocations == node.observer.starts == ["ok"] * 3


@pytest.mark.scenario("A14")
async def test_a_lock_that_is_handed_on_in_the_middle_of_an_allocate_stays_with_its_new_owner(node):
    """What a pod gets follows from the ids and its own decision, never from who has the lock."""
    node.cluster.annotate(**{NODE_LOCK: "2026-08-21T10:11:12Z,default,a"})
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.add(pod("b", pieces=[[grant(1)]]))
    node.cluster.annotate(**{NODE_LOCK: "2026-08-21T10:16:13Z,default,b"})

    first = await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    assert held(node)
    second = await node.allocator.allocate(ids((1, 0)))
    await node.settled()

    assert [one.edits.env["POD"] for one in (first, second)] == ["a-uid", "b-uid"]
    assert not held(node)
