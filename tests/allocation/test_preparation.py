"""When the host, the disk or the vendor will not, is everything as before?"""

import asyncio
import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.allocation.ledger import Journal
from hami_plugin.config.settings import Settings
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.model.device import Health
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_FAILED
from tests.support.builders import FAMILY, TO_ALLOCATE, changed, grant, held_by, ids, pod, snapshot
from tests.support.node import until


async def refused(node, replicas) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(replicas)
    return caught.value


class FullDisk(Journal):
    """A disk that takes nothing."""

    def append(self, entry, whole=None):
        raise OSError(28, "No space left on device")


@pytest.mark.scenario("A13")
async def test_a_full_disk_reserves_nothing_marks_the_pod_failed_and_releases_the_lock(node):
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.annotate(**{NODE_LOCK: "2026-01-01T00:00:00Z,default,a"})
    node.journal._journal = FullDisk(node.root / "journal")

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "No space left" in refusal.message
    assert node.ledger.held == {}
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    assert node.cluster.pod(a).annotations[TO_ALLOCATE]
    assert NODE_LOCK not in node.cluster.node.annotations
    assert ("a", "HostNotPrepared") in {event[:2] for event in await node.told()}


@pytest.mark.scenario("A13")
@pytest.mark.parametrize("repeated", [False, True])
async def test_a_directory_that_cannot_be_made_is_a_refusal_with_its_reason(node, repeated):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    if repeated:
        await node.allocator.allocate(ids((0, 0)))
        (node.root / "hook").rename(node.root / "moved")
    (node.root / "hook").write_text("a file in the way")

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert len(node.ledger.held) == (1 if repeated else 0)


async def test_a_vendor_that_refuses_leaves_nothing_reserved(node):
    def never(_assignment, _host):
        raise RefusedError(RefusalReason.INVALID_REQUEST, "a name that leads elsewhere", code="INVALID_ARGUMENT")

    node.use(changed(FAMILY, inject=never))
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert (refusal.reason, refusal.code) == (RefusalReason.INVALID_REQUEST, "INVALID_ARGUMENT")
    assert node.ledger.held == {}
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED


async def test_a_container_waits_for_what_the_host_lacks_and_then_starts(node):
    lacks = ["no file libvgpu.so on the host"]
    node.use(changed(FAMILY, host_problem=lambda _host: "".join(lacks)), proving=False)
    plugin = node.allocator

    with pytest.raises(RefusedError, match=r"no file libvgpu.so on the host; .*tries again") as caught:
        await plugin.pre_start(ids((0, 0)))
    lacks.clear()
    await plugin.pre_start(ids((0, 0)))

    assert plugin.pre_start_required
    assert (caught.value.reason, caught.value.code) == (RefusalReason.NOT_PREPARED, "UNAVAILABLE")
    assert node.observer.starts == ["HostNotPrepared"]


async def test_files_are_written_before_the_answer(node):
    def inject(assignment, host):
        folder = host.paths.hook / f"parts/{assignment.pod.name}"
        plain = FAMILY.node.inject(assignment, host)
        return replace(plain, directories=(folder,), files={folder / "limits": "half\n"})

    node.use(changed(FAMILY, inject=inject))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    await node.allocator.allocate(ids((0, 0)))

    file = node.root / "hook/parts/a/limits"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("half\n", 0o644)


async def test_a_device_that_cannot_be_described_is_refused_with_the_vendors_words(node):
    def gone(device, _host):
        raise HamiError(f"{device.uuid} has no node on this host")

    node.use(changed(FAMILY, device_edits=gone))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "has no node on this host" in refusal.message
    assert node.ledger.held == {}


class Slow:
    """An ``inject`` that waits for the test. ``prepared`` are the limits that it has made ready, in order."""

    def __init__(self, node):
        self.gate, self.began, self.prepared = threading.Event(), threading.Event(), []
        node.use(changed(FAMILY, inject=self))

    def __call__(self, assignment, host):
        self.began.set()
        self.gate.wait()
        made = FAMILY.node.inject(assignment, host)
        self.prepared.append(made.edits.env["LIMIT_0"])
        return made

    async def asked(self):
        await until(self.began.is_set)


@pytest.fixture
def slow(node):
    slow = Slow(node)
    yield slow
    slow.gate.set()


def holds(node):
    node.journal.flush()
    return [entry["uid"] for entry in node.journal.read() if entry["op"] == "hold"]


async def outcome(task):
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result.reason if isinstance(result, RefusedError) else result


async def test_a_pod_that_ends_while_its_host_is_prepared_holds_nothing(node, slow):
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.cluster.remove(a)
    slow.gate.set()

    assert await outcome(asked) is RefusalReason.NO_PENDING_POD
    assert node.ledger.held == {}
    assert holds(node) == []


async def test_a_device_that_falls_ill_while_its_host_is_prepared_is_not_handed_out(node, slow):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.snapshot.set(snapshot(4, d0=Health.UNHEALTHY))
    slow.gate.set()

    assert await outcome(asked) in (RefusalReason.UNHEALTHY_DEVICE, RefusalReason.UNKNOWN_DEVICE)
    assert node.ledger.held == {}


async def test_what_is_handed_out_is_the_decision_of_the_end_and_the_host_is_prepared_for_that(node, slow):
    a = node.cluster.add(pod("a", pieces=[[grant(0, 1000)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.cluster.add(replace(a, annotations=pod("a", pieces=[[grant(0, 2000)]]).annotations))
    slow.gate.set()
    answer = await asked

    assert answer.edits.env["LIMIT_0"] == "2000m,10"
    assert slow.prepared == ["1000m,10", "2000m,10"]
    assert [held.grants[0].memory for held in node.ledger.held.values()] == [2000]


def planned(node, slow):
    """The grants that are placed from now on, one for each plan of a container with one device."""
    plans = []
    node.use(changed(FAMILY, inject=slow, place=lambda grant, _device, _others: plans.append(grant) or grant))
    return plans


async def test_what_a_container_gets_is_planned_once_where_nothing_changes_meanwhile(node, slow):
    plans = planned(node, slow)
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    slow.gate.set()
    await asked

    assert len(plans) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.snapshot.set(snapshot(4, d3=Health.UNHEALTHY)),
        lambda node: node.cluster.add(pod("b", pieces=[[grant(1)]])),
        lambda node: node.ledger.reserve(held_by(pod("b"), replicas=ids((1, 0)), grants=[grant(1)])),
        lambda node: node.pods.by_creation(),
    ],
    ids=["devices", "pods", "shares", "order of the pods"],
)
async def test_what_a_container_gets_is_planned_anew_where_something_changes_meanwhile(node, slow, change):
    plans = planned(node, slow)
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    change(node)
    slow.gate.set()
    await asked

    assert len(plans) == 2


async def test_a_pod_that_fails_while_its_host_is_prepared_holds_nothing(node, slow):
    node.cluster.down = True
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.settlement.fail(a)
    slow.gate.set()

    assert await outcome(asked) is RefusalReason.NO_PENDING_POD
    assert node.ledger.held == {}


async def test_what_is_too_much_is_refused_when_it_is_known_meanwhile_who_has_ended(node, slow):
    b = node.cluster.add(pod("b", pieces=[[grant(0, 60_000)]]))
    node.ledger.reserve(held_by(b, replicas=ids((0, 1)), grants=[grant(0, 60_000)]))
    node.cluster.add(pod("a", pieces=[[grant(0, 50_000)]]))
    node.outdated = "unreachable: no answer"
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.outdated = ""
    slow.gate.set()

    assert await outcome(asked) is RefusalReason.OVERCOMMITTED


async def test_two_calls_for_one_container_at_once_get_one_share(node, slow):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    both = [asyncio.create_task(node.allocator.allocate(ids((0, 0)))) for _ in range(2)]
    await slow.asked()
    slow.gate.set()

    first, second = await asyncio.gather(*both)

    assert first == second
    assert holds(node) == ["a-uid"]


async def test_two_pods_prepared_at_once_do_not_get_more_than_a_device_has(node, slow):
    for name in "ab":
        node.cluster.add(pod(name, pieces=[[grant(0, 60_000)]]))
    # Of equal shares that wait, none is served: so one is asked for by its own ids and number.
    node.cluster.add(pod("b", pieces=[[grant(0, 50_000), grant(1, 1000)]]))
    both = [
        asyncio.create_task(node.allocator.allocate(ids((0, 0)))),
        asyncio.create_task(node.allocator.allocate(ids((0, 1), (1, 0)))),
    ]
    await slow.asked()
    slow.gate.set()

    results = [await outcome(one) for one in both]

    assert results.count(RefusalReason.OVERCOMMITTED) == 1
    assert len(holds(node)) == 1


async def test_a_call_that_is_cancelled_while_the_host_is_prepared_holds_nothing_and_the_next_is_served(node, slow):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    asked.cancel()
    await asyncio.wait([asked])
    slow.gate.set()

    assert node.ledger.held == {}
    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "a-uid"


async def test_a_repeated_call_is_not_answered_with_what_was_taken_back_meanwhile(node, slow):
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    slow.gate.set()
    await node.allocator.allocate(ids((0, 0)))
    await node.settled()
    slow.gate.clear()
    slow.began.clear()
    again = asyncio.create_task(node.allocator.allocate(ids((0, 0))))
    await slow.asked()

    node.cluster.remove(a)
    slow.gate.set()

    assert await outcome(again) is RefusalReason.NO_PENDING_POD
    assert node.ledger.held == {}


@pytest.mark.scenario("H12")
async def test_what_the_host_cleans_away_is_there_again_for_the_next_container_and_for_a_repeated_call(node):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    first = await node.allocator.allocate(ids((0, 0)))
    folders = [Path(mount.host_path) for mount in first.edits.mounts]
    shutil.rmtree(node.root / "hook")

    assert await node.allocator.allocate(ids((0, 0))) == first
    assert all(map(Path.is_dir, folders))
    shutil.rmtree(node.root / "hook")
    node.cluster.add(pod("b", pieces=[[grant(1)]]))
    second = await node.allocator.allocate(ids((1, 0)))
    assert all(map(Path.is_dir, [Path(mount.host_path) for mount in second.edits.mounts]))


@pytest.mark.scenario("H12")
def test_nothing_that_the_daemon_needs_itself_is_where_hosts_clean_up():
    paths = [value for value in Settings(nodeName="n").model_dump().values() if isinstance(value, Path)]

    assert len(paths) > 3
    assert [path for path in paths if path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp")] == []


@pytest.mark.scenario("A13")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=["no inode", "read-only", "bad disk"])
async def test_a_disk_that_makes_no_new_file_refuses_with_the_reason_and_serves_once_it_does(node, monkeypatch, error):
    """Out of inodes: what is there can be written to, and nothing new can be made."""
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.add(pod("b", pieces=[[grant(1)]]))
    await node.allocator.allocate(ids((1, 0)))

    def none_new(path, *_arguments, **_named):
        raise OSError(error, os.strerror(error), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", none_new)
        refusal = await refused(node, ids((0, 0)))
        await node.settled()

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert os.strerror(error) in refusal.message
    assert all(device.health.offered for device in node.snapshot.value.devices)
    assert {held.pod for held in node.ledger.held.values()} == {"b"}
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    node.cluster.add(pod("c", pieces=[[grant(0)]]))
    assert (await node.allocator.allocate(ids((0, 1)))).edits.env["POD"] == "c-uid"
