"""Partitions while the daemon serves: several cards at once, pods that end, drivers and API servers that fail."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hami_plugin.allocation.pods import PodTable
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Assignment
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import State
from hami_plugin.partitions.manager import Partitions, Peers, Timing
from hami_plugin.process.concurrency import Watched, cancel
from hami_plugin.sdk import Placement
from tests.support.builders import NODE, container, device, pod
from tests.support.cluster import FakeCluster
from tests.support.node import SOON, until
from tests.support.partition_pods import decided, side
from tests.support.partitions import A100, Cards, FakePartitionDriver, unavailable

FAST = Timing(resync=0.05, grace=0.0, budget=30.0, first=0.01, cap=0.02, report=0.1, careful=0.3, pods=0.2, again=0.01)


class Stage:
    """A node's pods and cards; ``current`` and ``kept`` are what the API server and the kubelet say."""

    def __init__(self, root, timing=FAST, specs=None, **options):
        self.cards = Cards(tables={"GPU-0": A100, "GPU-1": A100})
        self.api = FakeCluster()
        self.events = EventRecorder(self.api, NODE, backoff=SOON)
        self.pods = PodTable()
        self.snapshot = Watched(snapshot_of("GPU-0", "GPU-1"))
        self.current = True
        self.kept: set | HamiError = set()
        self.settled: list[str] = []
        self.path, self.timing, self.specs, self.options = root / "partitions", timing, specs, options
        self.partitions = self.made()

    def made(self):
        return Partitions(
            "toy.io/card",
            side(self.cards, **self.options),
            FakePartitionDriver(self.cards),
            PartitionJournal(self.path, "boot"),
            snapshot=self.snapshot,
            peers=Peers(pods=self.pods, current=lambda: self.current, listed=self.listed, settle=self.settled.append),
            events=self.events,
            specs=self.specs,
            timing=self.timing,
        )

    async def listed(self):
        if isinstance(self.kept, HamiError):
            raise self.kept
        return self.kept

    def come(self, name, *parts, **changes):
        containers = [container(one) for one in dict.fromkeys(part[0] for part in parts)]
        one = pod(name, containers=containers, annotations=decided(*parts), **changes)
        self.pods.update(one)
        return one

    async def allocate(self, one, name="main"):
        assignment = Assignment(pod=one, container=one.container(name), shares=())
        made = await self.partitions.prepared(assignment)
        await self.partitions.handed_out(assignment)
        return made

    def blocked(self):
        known = self.partitions.cuttable.value.items()
        return {card: tuple(each.placement for each in one.blocked) for card, one in known if one.blocked}

    def looks(self):
        return sum(call == "partitions" for call, _card in self.cards.calls)

    def states(self):
        return sorted(entry.state for entry in self.partitions.entries.values())

    async def says(self, reason):
        """Wait for an Event with this reason."""
        writing = asyncio.create_task(self.events.run())
        await until(lambda: reason in [told for _kind, told, _message in self.api.events])
        await cancel(writing)


def snapshot_of(*uuids):
    devices = tuple(device(number, uuid=uuid) for number, uuid in enumerate(uuids))
    return Snapshot(devices=devices, ready=bool(uuids))


def part(card=0, profile="1g.5gb", start=6, size=1, *, name="main", device=0):
    return (name, device, f"GPU-{card}", profile, start, size)


@asynccontextmanager
async def running(stage):
    task = asyncio.create_task(stage.partitions.run())
    try:
        yield stage
        assert not task.done(), task.exception()
    finally:
        await cancel(task)
        await stage.partitions.close()


@pytest.fixture
async def stage(tmp_path):
    stage = Stage(tmp_path)
    stage.pods.replace([])
    async with running(stage):
        await stage.partitions.begun.wait()
        yield stage


async def test_a_partition_lives_as_long_as_its_pod(stage):
    one = stage.come("a", part())
    (made,) = await stage.allocate(one)
    assert stage.cards.all() == (made,)

    stage.pods.delete(one)
    await until(lambda: stage.states() == [])
    assert stage.cards.all() == ()


async def test_a_pod_that_is_only_terminating_keeps_its_partition(stage):
    one = stage.come("a", part())
    await stage.allocate(one)
    stage.come("a", part(), deleted=True)
    await asyncio.sleep(0.3)

    assert stage.states() == [State.ASSIGNED]
    stage.come("a", part(), deleted=True, phase="Succeeded")
    await until(lambda: stage.cards.all() == ())


@pytest.mark.parametrize("kept", [{("default", "a")}, HamiError("no such socket")])
async def test_a_pod_that_is_gone_keeps_its_partition_while_the_kubelet_has_it(stage, kept):
    one = stage.come("a", part())
    await stage.allocate(one)
    stage.kept = kept
    stage.pods.delete(one)
    await asyncio.sleep(0.3)
    assert stage.states() == [State.ASSIGNED]

    stage.kept = set()
    await until(lambda: stage.cards.all() == ())


async def test_while_the_api_server_is_away_nothing_is_destroyed_and_pods_are_served(stage):
    one = stage.come("a", part())
    await stage.allocate(one)
    stage.current = False
    stage.pods.delete(one)
    await stage.allocate(stage.come("b", part(start=5)))
    await asyncio.sleep(0.3)
    assert len(stage.cards.all()) == 2

    stage.current = True
    await until(lambda: len(stage.cards.all()) == 1)


async def test_a_call_that_takes_its_time_holds_up_no_other_card(stage):
    going_on, done = threading.Event(), threading.Event()
    stage.cards.order("create", then=lambda: (going_on.set(), done.wait(10)))
    slow = asyncio.create_task(stage.allocate(stage.come("a", part())))
    await asyncio.to_thread(going_on.wait, 10)

    await stage.allocate(stage.come("b", part(1)))
    assert not slow.done()
    done.set()
    await slow


async def test_a_call_that_takes_too_long_is_refused_and_found_again(tmp_path):
    stage = Stage(tmp_path)
    stage.pods.replace([])
    done = threading.Event()
    async with running(stage):
        await stage.partitions.begun.wait()
        stage.cards.order("create", then=lambda: done.wait(30))
        one = stage.come("a", part())
        stage.partitions._timing = replace(FAST, budget=0.2)
        with pytest.raises(HamiError, match="in time"):
            await stage.allocate(one)
        stage.partitions._timing = FAST
        done.set()
        await until(lambda: stage.states() == [State.READY])
        made = await stage.allocate(one)
        assert made == stage.cards.all()


async def test_one_that_somebody_uses_is_told_of_and_keeps_no_other_from_anything(stage):
    one = stage.come("a", part())
    (made,) = await stage.allocate(one)
    stage.cards.uses(made.uuid, 4711)
    stage.pods.delete(one)
    await until(lambda: stage.blocked() == {"GPU-0": (Placement(start=6, size=1),)})
    await stage.allocate(stage.come("b", part(start=5)))
    await stage.allocate(stage.come("c", part(1)))

    await stage.says("PartitionStuck")
    assert any("4711" in message for _kind, _reason, message in stage.api.events)
    stage.cards.uses(made.uuid)
    await until(lambda: stage.blocked() == {})
    assert len(stage.cards.all()) == 2


async def test_one_that_an_allocate_destroys_before_it_is_told_of_ends_no_loop(stage):
    one = stage.come("a", part())
    (made,) = await stage.allocate(one)
    stage.cards.uses(made.uuid, 4711)
    cutter = stage.partitions._cutter
    destroy = cutter.destroy

    def destroyed_meanwhile(number):
        why = destroy(number)
        stage.cards.uses(made.uuid)
        destroy(number)  # as an Allocate does, before the loop hears why the first try failed
        return why

    cutter.destroy = destroyed_meanwhile
    stage.pods.delete(one)

    await until(lambda: stage.cards.all() == ())
    await stage.allocate(stage.come("b", part()))
    assert stage.states() == [State.ASSIGNED]


async def test_if_one_of_a_containers_partitions_cannot_be_made_its_others_go_and_other_containers_stay(stage):
    both = [part(start=5 + at, name=name, device=at) for name, at in (("first", 0), ("first", 1))]
    second = [part(1, start=5 + at, name="second", device=at) for at in (0, 1)]
    one = stage.come("a", *both, *second)
    kept = await stage.allocate(one, "first")
    stage.cards.order("create")
    stage.cards.order("create", HamiError("it fails"))
    with pytest.raises(HamiError, match="it fails"):
        await stage.allocate(one, "second")

    await until(lambda: stage.cards.all() == kept)
    assert len(await stage.allocate(one, "second")) == 2


async def test_foreign_partitions_are_never_touched_and_take_their_places_away(tmp_path):
    stage = Stage(tmp_path)
    stage.pods.replace([])
    there = stage.cards.cut("GPU-0", "3g.20gb", 4)
    async with running(stage):
        await stage.partitions.begun.wait()
        assert stage.blocked() == {"GPU-0": (Placement(start=4, size=4),)}
        left = {(card, one.name): count for card, one, count in stage.partitions.placeable()}
        assert (left["GPU-0", "1g.5gb"], left["GPU-0", "3g.20gb"], left["GPU-1", "1g.5gb"]) == (4, 1, 7)
        await asyncio.sleep(0.2)
        assert stage.cards.all() == (there,)
        assert {call for call, _card in stage.cards.calls} == {"partitions"}
        await stage.says("PartitionForeign")


async def test_a_reset_of_a_card_is_told_to_its_pods_and_keeps_their_containers_from_starting(stage):
    one = stage.come("a", part())
    await stage.allocate(one)
    assert stage.partitions.lost(one.uid, "main") == ""
    stage.cards.reset("GPU-0")
    await until(lambda: stage.states() == [State.LOST])

    assert "gone" in stage.partitions.lost(one.uid, "main")
    await stage.says("PartitionLost")
    await stage.allocate(stage.come("b", part(start=5)))
    stage.pods.delete(one)
    await until(lambda: stage.states() == [State.ASSIGNED])


async def test_a_line_that_a_crash_has_torn_holds_nothing_back(tmp_path):
    stage = Stage(tmp_path, replace(FAST, careful=3600.0))
    stage.pods.replace([])
    one = stage.come("a", part())
    async with running(stage):
        await stage.partitions.begun.wait()
        await stage.allocate(one)
    with stage.path.open("ab") as file:
        file.write(b'{"v": 1, "seq": 9, "op": "intent-cre')
    stage.pods.delete(one)
    stage.partitions = stage.made()
    async with running(stage):
        await until(lambda: stage.cards.all() == ())
        again = PartitionJournal(stage.path, "boot")
        again.load()

    assert (again.unreadable, again.torn) == ((), "")


@pytest.mark.parametrize("careful", [0.0, 3600.0])
async def test_a_damaged_journal_is_told_of_and_destroys_nothing_for_a_while(tmp_path, careful):
    stage = Stage(tmp_path, replace(FAST, careful=careful))
    stage.pods.replace([])
    one = stage.come("a", part())
    async with running(stage):
        await stage.partitions.begun.wait()
        await stage.allocate(one)
    stage.path.write_bytes(stage.path.read_bytes()[:-30] + b"\n")
    stage.pods.delete(one)
    stage.partitions = stage.made()
    async with running(stage):
        await stage.partitions.begun.wait()
        await stage.says("PartitionJournalDamaged")
        if careful:
            looks = stage.looks()
            await until(lambda: stage.looks() > looks + 3)
            assert len(stage.cards.all()) == 1
        else:
            await until(lambda: stage.cards.all() == ())


async def test_a_driver_that_does_not_answer_at_the_start_is_waited_for(tmp_path):
    stage = Stage(tmp_path)
    stage.pods.replace([])
    for _ in range(3):
        stage.cards.order("partitions", unavailable())
    async with running(stage):
        await until(lambda: "does not answer" in stage.partitions.problem)
        assert stage.partitions.cuttable.value is None
        await stage.partitions.begun.wait()
        assert stage.partitions.problem == ""


async def test_pods_whose_names_are_not_told_yet_are_settled_after_a_restart(tmp_path):
    stage = Stage(tmp_path)
    stage.pods.replace([])
    one = stage.come("a", part())
    async with running(stage):
        await stage.partitions.begun.wait()
        await stage.allocate(one)
        told = stage.partitions.names(one)
        assert stage.cards.all()[0].uuid in next(iter(told.values()))
    stage.partitions = stage.made()
    async with running(stage):
        await until(lambda: stage.settled == [one.uid])


async def test_one_pods_unreadable_annotation_keeps_no_other_from_anything(stage):
    stage.pods.update(pod("odd", annotations={"toy.io/parts": "{"}))
    one = stage.come("a", part())
    await stage.allocate(one)
    stage.pods.delete(one)

    await until(lambda: stage.cards.all() == ())


async def test_what_is_shown_says_who_has_it_and_what_comes_next(stage):
    one = stage.come("a", part())
    await stage.allocate(one)
    stage.come("b", part(1, "2g.10gb", 4, 2))
    there = stage.cards.cut("GPU-1", "1g.5gb", 0)
    await until(lambda: State.FOREIGN in stage.states())

    shown = [(one.card, one.state, one.owner, one.plan) for one in stage.partitions.shown()]
    assert shown == [
        ("GPU-0", State.ASSIGNED, "default/a/main[0]", ""),
        ("GPU-1", State.FOREIGN, "", ""),
        ("GPU-1", State.RESERVED, "default/b/main[0]", "make"),
    ]
    assert there in stage.cards.all()


async def test_nothing_grows_with_pods_that_ever_were(stage):
    for number in range(20):
        one = stage.come(f"pod-{number}", part())
        await stage.allocate(one)
        stage.pods.delete(one)
        await until(lambda: stage.cards.all() == ())

    def kept():
        one = stage.partitions
        return [len(kept) for kept in (one.entries, one._due, one._ending_since, one._reported_at, one._busy)]

    await until(lambda: kept() == [0] * 5)  # the next turn tidies up


async def test_of_a_card_that_does_not_answer_nothing_is_believed_and_the_others_go_on(stage):
    one, other = stage.come("a", part()), stage.come("b", part(1))
    await stage.allocate(one)
    await stage.allocate(other)
    stage.cards.lost.add("GPU-0")
    stage.pods.delete(other)
    await until(lambda: stage.states() == [State.ASSIGNED])
    await until(lambda: "does not answer" in stage.partitions.problem)
    with pytest.raises(HamiError, match="does not answer"):
        await stage.allocate(stage.come("c", part(start=5)))
    await stage.allocate(stage.come("d", part(1)))

    stage.cards.lost.clear()
    await until(lambda: stage.partitions.problem == "")
    assert stage.states() == [State.ASSIGNED, State.ASSIGNED]


async def test_a_card_that_comes_later_is_asked_at_once_what_it_may_be_cut_into(tmp_path):
    stage = Stage(tmp_path, replace(FAST, resync=3600.0, pods=0.0))
    stage.pods.replace([])
    stage.snapshot.set(snapshot_of())
    async with running(stage):
        await stage.partitions.begun.wait()
        assert stage.partitions.cuttable.value == {}
        stage.snapshot.set(snapshot_of("GPU-0", "GPU-1"))
        await until(lambda: set(stage.partitions.cuttable.value) == {"GPU-0", "GPU-1"})


async def test_one_that_is_used_for_a_moment_is_not_told_of(tmp_path):
    stage = Stage(tmp_path, replace(FAST, report=3600.0))
    stage.pods.replace([])
    async with running(stage):
        await stage.partitions.begun.wait()
        one = stage.come("a", part())
        (made,) = await stage.allocate(one)
        stage.cards.uses(made.uuid, 4711)
        stage.pods.delete(one)
        await until(lambda: any(entry.attempts > 5 for entry in stage.partitions.entries.values()))
        stage.events.node("Last", "of all")
        await stage.says("Last")
        assert [reason for _kind, reason, _message in stage.api.events] == ["Last"]


class NotedSpecs:
    """UUIDs of partitions that were described."""

    def __init__(self):
        self.described = []

    def publish(self, made):
        self.described += [partition.uuid for _card, partition in made]

    def keep(self, uuids):
        pass


async def test_a_listing_that_takes_its_time_keeps_no_container_from_its_spec(tmp_path):
    stage = Stage(tmp_path, specs=NotedSpecs())
    stage.pods.replace([])
    begun, over = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        over.wait(30)

    async with running(stage):
        await stage.partitions.begun.wait()
        stage.cards.order("partitions", then=slowly)
        assert await asyncio.to_thread(begun.wait, 30)
        try:
            (made,) = await stage.allocate(stage.come("a", part()))
        finally:
            over.set()
        assert stage.specs.described == [made.uuid]
