"""Does the node say what it has, and is it written only when it does not say so already?"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace

import pytest

import hami_plugin.node_status.registration
from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Health, Link, Links, Snapshot
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import MAX_ANNOTATION_BYTES, FamilySource, LiveNode, Registration, Style
from hami_plugin.process.concurrency import Backoff, Watched, cancel
from hami_plugin.protocol.nodes import decode_json, decode_legacy, decode_scores
from hami_plugin.sdk import AnnotationKeys
from tests.support.builders import FAMILY, HANDSHAKE, NODE, REGISTER, SCORE, changed, device, snapshot, uuid
from tests.support.cluster import FakeCluster
from tests.support.node import until

PAIR = Links(pairs={(uuid(0), uuid(1)): Link(score=100, label="NV")})
OTHER = changed(
    FAMILY,
    device_type="ODD",
    annotations=AnnotationKeys(register="odd/register", handshake="odd/hs", to_allocate="odd/to", allocated="odd/all"),
)


class Rig:
    def __init__(self, shown, *, style=None, families=(FAMILY,), taken=frozenset, cuttable=None):
        self.cluster, self.live = FakeCluster(), LiveNode()
        self.events = EventRecorder(self.cluster, NODE)
        self.snapshot = Watched(shown)
        self.registration = Registration(
            self.cluster,
            [FamilySource(family=family, snapshot=self.snapshot, cuttable=cuttable) for family in families],
            node=self.live,
            events=self.events,
            style=style or Style(),
            now=lambda: datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC),
            taken=taken,
            backoff=Backoff(first=0.001, cap=0.002),
            together=0.001,
        )
        self.task = asyncio.create_task(self.registration.run())

    def attach(self):
        self.cluster.attach(live=self.live)
        return self

    @property
    def annotations(self):
        return self.cluster.node.annotations

    def told(self) -> set[str]:
        return {event.reason for event in self.events._queue._queue}

    async def quiet(self):
        """Let it look a few times more."""
        for _ in range(4):
            self.registration._wake.set()
            await asyncio.sleep(0.004)


@pytest.fixture
async def start():
    rigs = []

    def run(shown, **changes) -> Rig:
        rigs.append(Rig(shown, **changes))
        return rigs[-1]

    yield run
    for rig in rigs:
        await cancel(rig.task)


async def test_devices_and_scores_are_written_in_one_patch_and_then_nothing_more(start):
    rig = start(snapshot(2, links=PAIR)).attach()
    await until(lambda: REGISTER in rig.annotations)
    await rig.quiet()

    assert [info.id for info in decode_json(rig.annotations[REGISTER])] == [uuid(0), uuid(1)]
    assert decode_scores(rig.annotations[SCORE])[uuid(0)] == {uuid(1): 100}
    assert rig.cluster.calls == [("patch", "nodes")]
    assert rig.registration.problem == ""


async def test_a_family_is_not_registered_and_the_daemon_not_ready_until_its_partitions_are_known(start):
    cuttable = Watched(None)
    rig = start(snapshot(2), cuttable=cuttable).attach()
    await until(lambda: "its partitions are not known yet" in rig.registration.problem)
    before = dict(rig.annotations)

    cuttable.set({})
    await until(lambda: REGISTER in rig.annotations and not rig.registration.problem)

    assert REGISTER not in before
    assert rig.told() == set()


async def test_a_node_that_says_it_already_is_not_written_to(start):
    first = start(snapshot(2)).attach()
    await until(lambda: REGISTER in first.annotations)

    second = start(snapshot(2))
    second.cluster.set_node(NodeView(name=NODE, uid="node-uid", annotations=first.annotations))
    second.attach()
    await until(lambda: second.registration.problem == "")
    await second.quiet()

    assert second.cluster.calls == []


async def test_nothing_is_written_before_the_node_and_its_devices_are_known(start):
    rig = start(Snapshot())
    await rig.quiet()
    assert "node is not known" in rig.registration.problem
    rig.attach()
    await until(lambda: "no devices" in rig.registration.problem)

    assert rig.cluster.calls == []


async def test_a_former_word_stays_while_the_driver_is_not_ready_yet(start):
    rig = start(Snapshot())
    rig.cluster.annotate(**{REGISTER: "of a former life"})
    rig.attach()
    await rig.quiet()

    assert rig.annotations[REGISTER] == "of a former life"


async def test_a_change_of_health_is_written_at_once(start):
    rig = start(snapshot(2)).attach()
    await until(lambda: REGISTER in rig.annotations)

    rig.snapshot.set(snapshot(2, d1=Health.UNHEALTHY))

    await until(lambda: [i.health for i in decode_json(rig.annotations[REGISTER])] == [True, False])


async def test_it_is_settled_only_while_the_latest_change_is_written(start, monkeypatch):
    rig, seen = start(snapshot(2)), []
    patch = rig.cluster.patch_node

    async def slow(annotations, **more):
        if not seen:
            rig.snapshot.set(snapshot(2, d1=Health.UNHEALTHY))
            await until(rig.registration._wake.is_set)
        seen.append(rig.registration.settled)
        return await patch(annotations, **more)

    monkeypatch.setattr(rig.cluster, "patch_node", slow)
    rig.attach()
    await until(lambda: rig.registration.settled)
    during_a_write = [info.health for info in decode_json(rig.annotations[REGISTER])]

    rig.snapshot.set(snapshot(2))
    await until(lambda: len(seen) == 3)

    assert during_a_write == [True, False]
    assert seen == [False, False, False]


@pytest.mark.scenario("P10", "X9")
@pytest.mark.parametrize("text", [None, "edited"])
async def test_what_somebody_removes_or_edits_is_healed(start, text):
    rig = start(snapshot(2)).attach()
    await until(lambda: REGISTER in rig.annotations)
    right = rig.annotations[REGISTER]

    rig.cluster.annotate(**{REGISTER: text})

    await until(lambda: rig.annotations.get(REGISTER) == right)
    assert len(rig.cluster.writes) == 2


async def test_what_others_write_is_left_alone(start):
    rig = start(snapshot(2)).attach()
    await until(lambda: REGISTER in rig.annotations)

    rig.cluster.annotate(other="theirs")
    await rig.quiet()

    assert rig.annotations["other"] == "theirs"
    assert len(rig.cluster.writes) == 1


async def test_a_patch_that_fails_is_not_remembered_as_written(start):
    rig = start(snapshot(2))
    rig.cluster.fail("patch nodes", ClusterError("away"), ClusterError("conflict", status=409))
    rig.attach()

    await until(lambda: REGISTER in rig.annotations)

    assert len(rig.cluster.writes) == 3
    assert rig.registration.problem == ""


async def test_an_api_server_that_is_away_shows_as_a_problem(start):
    rig = start(snapshot(2))
    rig.cluster.down = True
    rig.attach()

    await until(lambda: rig.registration.problem == "connection refused")


@pytest.mark.scenario("P11")
async def test_a_patch_that_was_confirmed_and_lost_is_written_again(start):
    rig = start(snapshot(2)).attach()
    await until(lambda: REGISTER in rig.annotations)

    rig.cluster.set_node(replace(rig.cluster.node, annotations={}))

    await until(lambda: REGISTER in rig.annotations)


@pytest.mark.scenario("P9")
async def test_a_node_that_is_deleted_and_created_again_is_registered_again(start):
    rig = start(snapshot(2)).attach()
    await until(lambda: REGISTER in rig.annotations)

    rig.cluster.set_node(None)
    await until(lambda: rig.registration.problem)
    rig.cluster.set_node(NodeView(name=NODE, uid="another"))

    await until(lambda: REGISTER in rig.annotations)


async def test_scores_follow_the_links_and_are_not_made_anew_for_a_fault(start, monkeypatch):
    made = []
    real = hami_plugin.node_status.registration.score_annotation
    monkeypatch.setattr(
        hami_plugin.node_status.registration, "score_annotation", lambda *asked: made.append(asked) or real(*asked)
    )
    rig = start(snapshot(2, links=PAIR)).attach()
    await until(lambda: SCORE in rig.annotations)
    well = rig.annotations[REGISTER]

    ill = replace(device(0), health=Health.UNHEALTHY)
    rig.snapshot.set(replace(rig.snapshot.value, devices=(ill, device(1))))
    await until(lambda: rig.annotations[REGISTER] != well)
    assert len(made) == 1

    slower = Links(pairs={(uuid(0), uuid(1)): Link(score=10, label="SYS")})
    rig.snapshot.set(replace(rig.snapshot.value, links=slower))
    await until(lambda: decode_scores(rig.annotations[SCORE])[uuid(0)] == {uuid(1): 10})


async def test_scores_can_be_left_out(start):
    rig = start(snapshot(2, links=PAIR), style=Style(scores=False)).attach()
    await until(lambda: REGISTER in rig.annotations)

    assert SCORE not in rig.annotations


@pytest.mark.scenario("P12")
async def test_scores_give_way_and_old_ones_go_when_the_node_would_say_too_much(start):
    rig = start(snapshot(2, links=PAIR)).attach()
    await until(lambda: SCORE in rig.annotations)

    said = sum(len(key) + len(value) for key, value in rig.annotations.items())
    rig.cluster.annotate(theirs="x" * (MAX_ANNOTATION_BYTES - said - len("theirs") + 1))
    await until(lambda: SCORE not in rig.annotations)
    await rig.quiet()

    assert REGISTER in rig.annotations
    assert len(rig.cluster.writes) == 2
    assert rig.told() == {"AnnotationsTooLarge"}


@pytest.mark.scenario("P12")
async def test_scores_of_more_devices_than_fit_are_removed(start):
    rig = start(snapshot(2, links=PAIR)).attach()
    await until(lambda: SCORE in rig.annotations)

    rig.snapshot.set(snapshot(64))

    await until(lambda: SCORE not in rig.annotations)
    assert len(decode_json(rig.annotations[REGISTER])) == 64


async def test_a_device_that_cannot_be_written_down_takes_no_other_family_with_it(start):
    rig = start(snapshot(1), families=(FAMILY, OTHER)).attach()
    await until(lambda: "odd/register" in rig.annotations)
    bad = changed(FAMILY, register=lambda item, legacy: replace(FAMILY.node.register(item, legacy), id="\n"))
    rig.registration._sources[0] = FamilySource(family=bad, snapshot=rig.snapshot)
    before = rig.annotations[REGISTER]

    rig.snapshot.set(snapshot(2))
    await until(lambda: len(decode_json(rig.annotations["odd/register"])) == 2)

    assert rig.annotations[REGISTER] == before
    assert rig.registration.problem.startswith("TOY: ")
    assert rig.told() == {"NotRegistered"}


LEGACY = Style(legacy=True, heartbeat=0.2)


async def test_a_scheduler_of_27_gets_its_own_text_and_a_heartbeat(start):
    rig = start(snapshot(2), style=LEGACY).attach()
    await until(lambda: len(rig.cluster.writes) > 2)

    assert [info.type for info in decode_legacy(rig.annotations[REGISTER])] == ["TOY-Toy", "TOY-Toy"]
    assert rig.annotations[HANDSHAKE] == "Reported_2026-08-21 10:11:12"
    assert [sorted(body) for body in rig.cluster.bodies[:2]] == [[HANDSHAKE, REGISTER, SCORE], [HANDSHAKE]]


async def test_a_node_that_others_change_all_the_time_still_gets_its_heartbeat(start):
    rig = start(snapshot(2), style=LEGACY).attach()
    await until(lambda: HANDSHAKE in rig.annotations)
    beats, changes = len(rig.cluster.writes), count()

    def changed_and_beaten():
        rig.cluster.annotate(theirs=str(next(changes)))
        return len(rig.cluster.writes) > beats

    await until(changed_and_beaten)


async def test_a_change_of_the_node_just_before_a_heartbeat_does_not_put_it_off(start, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(hami_plugin.node_status.registration, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rig = start(snapshot(2), style=replace(LEGACY, heartbeat=3600.0)).attach()
    await until(lambda: HANDSHAKE in rig.annotations)
    beats = len(rig.cluster.writes)

    now[0] = 3599.9
    rig.cluster.annotate(theirs="changed")
    await asyncio.sleep(0.05)
    now[0] = 3600.1

    await until(lambda: len(rig.cluster.writes) > beats)


async def test_a_heartbeat_that_fails_is_repeated_at_once(start, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(hami_plugin.node_status.registration, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rig = start(snapshot(2), style=replace(LEGACY, heartbeat=3600.0)).attach()
    await until(lambda: HANDSHAKE in rig.annotations)
    rig.cluster.fail("patch nodes", ClusterError("away"))

    now[0] = 3601.0
    rig.cluster.annotate(**{HANDSHAKE: "Requesting_2026-08-21 10:11:42"})

    await until(lambda: rig.annotations[HANDSHAKE].startswith("Reported"))
    assert len(rig.cluster.writes) == 3


async def test_a_driver_that_is_away_has_no_heartbeat(start):
    away = replace(snapshot(2), ready=False, reason="NoDriver")
    rig = start(away, style=LEGACY).attach()
    await until(lambda: REGISTER in rig.annotations)
    await asyncio.sleep(0.05)

    assert HANDSHAKE not in rig.annotations
    assert len(rig.cluster.writes) == 1


async def test_changes_that_come_together_are_written_together(start):
    rig = start(snapshot(1)).attach()
    await until(lambda: REGISTER in rig.annotations)
    patch, gate = rig.cluster.patch_node, asyncio.Event()

    async def held(changes):
        await gate.wait()
        return await patch(changes)

    rig.cluster.patch_node = held
    for devices in range(2, 6):
        rig.snapshot.set(Snapshot(devices=tuple(device(n) for n in range(devices)), ready=True))
        await asyncio.sleep(0)

    gate.set()
    await until(lambda: len(decode_json(rig.annotations[REGISTER])) == 5)

    assert len(rig.cluster.writes) <= 3
