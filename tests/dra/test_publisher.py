"""Slices as they come to be at the API server, whatever others and the server itself make of them."""

import asyncio
import copy
from contextlib import asynccontextmanager

import pytest

from hami_plugin.dra.publisher import NodeSlices, SlicePublisher
from hami_plugin.dra.slices import PoolContents, Taints, device_name, slice_view
from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import FamilySource, LiveNode
from hami_plugin.process.concurrency import Backoff, Watched
from hami_plugin.simulation.objects import kept, misplaced
from tests.support.builders import FAMILY, NODE, snapshot, uuid
from tests.support.cluster import FakeCluster

DRIVER = "toy.hami.io"


class Api:
    """Keeps slices, counts writes, and shows each to a feed as a watch does. ``edit`` changes what it is given."""

    def __init__(self, slices):
        self.there, self.writes, self.version, self.away = {}, 0, 0, 0
        self.edit = lambda document: document
        self._slices = slices

    async def create_slice(self, document):
        return self._put(document)

    async def update_slice(self, document):
        if (
            self.there[document["metadata"]["name"]]["metadata"]["resourceVersion"]
            != document["metadata"]["resourceVersion"]
        ):
            raise ClusterError("it was changed", status=409)
        return self._put(document)

    async def delete_slice(self, name, *, uid):
        self._count()
        assert self.there[name]["metadata"]["uid"] == uid
        self.wipe(name)

    def wipe(self, *names):
        for name in names or list(self.there):
            self._slices.feed.delete(slice_view(self.there.pop(name)))

    def by_others(self, name):
        """Somebody else empties a slice."""
        document = copy.deepcopy(self.there[name])
        document["spec"]["devices"] = []
        self._slices.feed.update(slice_view(self._stored(document)))

    def names(self):
        return [
            device["name"] for _name, one in sorted(self.there.items()) for device in one["spec"].get("devices", ())
        ]

    def devices(self):
        return [device for _name, one in sorted(self.there.items()) for device in one["spec"]["devices"]]

    def _put(self, document):
        self._count()
        return self._stored(self.edit(kept(copy.deepcopy(dict(document)))))

    def _stored(self, document):
        self.version += 1
        meta = {**document["metadata"], "resourceVersion": str(self.version), "uid": f"uid-{self.version}"}
        self.there[meta["name"]] = {**document, "metadata": meta}
        return self.there[meta["name"]]

    def _count(self):
        if self.away:
            self.away -= 1
            raise ClusterError("the API server is away", status=503)
        self.writes += 1


class Stage:
    def __init__(self, **options):
        self.slices, self.live, self.cluster = NodeSlices(), LiveNode(), FakeCluster()
        self.api, self.snapshot, self.withheld = Api(self.slices), Watched(snapshot(3)), set()
        self.publisher = SlicePublisher(
            DRIVER,
            [FamilySource(family=FAMILY, snapshot=self.snapshot)],
            self.api,
            self.slices,
            node=self.live,
            node_name=NODE,
            events=EventRecorder(self.cluster, NODE),
            withheld=lambda: self.withheld,
            backoff=Backoff(first=0.001, cap=0.005),
            **options,
        )

    def known(self):
        self.slices.feed.replace([])
        self.live.deliver(NodeView(name=NODE, uid="u1"))

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  # the server in memory sets no event
                await asyncio.sleep(0.001)

    async def settled(self):
        """Whatever has to be written has been: every task has had many turns."""
        for _ in range(200):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)

    def reasons(self):
        return [self.publisher._events._queue._queue[n].reason for n in range(self.publisher._events._queue.qsize())]


@asynccontextmanager
async def running(**options):
    stage = Stage(**options)
    task = asyncio.create_task(stage.publisher.run())
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.wait([task])


def names(*numbers):
    return [device_name(uuid(number)) for number in numbers]


@pytest.fixture
async def stage():
    async with running() as one:
        one.known()
        await one.until(lambda: one.api.names() == names(0, 1, 2) and not one.publisher.problem)
        yield one


async def test_nothing_is_written_before_the_slices_the_node_and_the_devices_are_known():
    async with running() as stage:
        stage.snapshot.set(Snapshot())
        stage.live.deliver(NodeView(name=NODE, uid="u1"))
        await stage.settled()
        stage.slices.feed.replace([])
        await stage.settled()
        assert stage.api.writes == 0
        assert stage.publisher.problem

        stage.snapshot.set(snapshot(1))
        await stage.until(lambda: stage.api.names() == names(0))


async def test_a_device_that_fails_goes_and_comes_back_with_one_write_each(stage):
    before = stage.api.writes
    stage.snapshot.set(snapshot(3, d1=Health.UNHEALTHY))
    await stage.until(lambda: stage.api.names() == names(0, 2))
    stage.snapshot.set(snapshot(3))
    await stage.until(lambda: stage.api.names() == names(0, 1, 2))

    await stage.settled()
    assert stage.api.writes == before + 2


async def test_a_wipe_and_what_others_change_is_mended(stage):
    stage.api.wipe()
    await stage.until(lambda: stage.api.names() == names(0, 1, 2))
    stage.api.by_others(next(iter(stage.api.there)))
    await stage.until(lambda: stage.api.names() == names(0, 1, 2))


async def test_a_server_that_is_away_is_asked_again_and_said(stage):
    stage.api.away = 3
    stage.snapshot.set(snapshot(2))
    await stage.until(lambda: stage.api.names() == names(0, 1))
    await stage.until(lambda: not stage.publisher.problem)


async def test_fields_that_the_server_drops_are_told_once_and_written_once():
    async with running() as stage:

        def without(document):
            for device in document["spec"]["devices"]:
                device.pop("allowMultipleAllocations", None)
            return document

        stage.api.edit = without
        stage.known()
        await stage.until(lambda: "DRAConsumableCapacity" in stage.publisher.limitation)
        assert not stage.publisher.problem, "what is published serves"
        writes = stage.api.writes
        stage.publisher.look()
        await stage.settled()
        assert stage.api.writes == writes
        assert sorted(stage.reasons()) == ["ResourceSliceFieldsDropped", "ResourceSlicesPublished"]

        stage.api.edit = lambda document: document
        stage.snapshot.set(snapshot(2))
        await stage.until(lambda: not stage.publisher.limitation)
        assert all(
            device["allowMultipleAllocations"] for one in stage.api.there.values() for device in one["spec"]["devices"]
        )


async def test_cards_that_pods_have_by_the_device_plugin_are_published_once_these_have_ended(stage):
    stage.withheld.add(uuid(1))
    stage.publisher.look()
    await stage.until(lambda: stage.api.names() == names(0, 2))
    stage.withheld.clear()
    stage.publisher.look()
    await stage.until(lambda: stage.api.names() == names(0, 1, 2))


async def test_slices_of_other_drivers_are_left_alone(stage):
    other = {
        "metadata": {"name": "x", "uid": "1", "resourceVersion": "99"},
        "spec": {"driver": "other.io", "devices": []},
    }
    stage.slices.feed.update(slice_view(other))
    writes = stage.api.writes
    await stage.settled()

    assert stage.api.writes == writes


async def test_an_old_view_of_a_slice_brings_nothing_back(stage):
    (name,) = stage.api.there
    old = copy.deepcopy(stage.api.there[name])
    stage.snapshot.set(snapshot(2))
    await stage.until(lambda: stage.api.names() == names(0, 1))
    writes = stage.api.writes

    stage.slices.feed.update(slice_view(old))
    stage.slices.feed.delete(slice_view(old))
    await stage.settled()

    assert stage.api.writes == writes


async def test_a_server_that_drops_taints_has_unwell_devices_left_out():
    """One without the gate would show an unwell device as well."""
    async with running(taints=Taints.NO_SCHEDULE) as stage:
        stage.known()
        stage.snapshot.set(snapshot(2, d1=Health.UNHEALTHY))
        await stage.until(lambda: stage.api.names() == names(0, 1))
        assert [("taints" in device) for device in stage.api.devices()] == [False, True]

        def without(document):
            for device in document["spec"]["devices"]:
                device.pop("taints", None)
            return document

        stage.api.edit = without
        stage.api.wipe()
        await stage.until(lambda: stage.api.names() == names(0))


class Counting(Stage):
    """The devices consume counters of one set. ``refused`` says what the server has against a slice."""

    def __init__(self, refused):
        super().__init__()
        self.api.edit = lambda document: self._refuse(refused, document)
        self.publisher._wanted = self._pool

    async def _pool(self):
        consumed = [{"counterSet": "cards", "counters": {"a": {"value": "1"}}}]
        if self.publisher._uncounted:
            return PoolContents(devices=[{"name": "a"}])
        both = [{"name": name, "consumesCounters": consumed} for name in ("a", "b")]
        return PoolContents(devices=both, counters=[{"name": "cards", "counters": {"a": {"value": "1"}}}])

    def _refuse(self, refused, document):
        if why := refused(document):
            raise ClusterError(why, status=422)
        return document


@pytest.mark.parametrize(
    ("refused", "slices", "devices"),
    [
        (lambda document: misplaced(document, apart=True), 2, ["a", "b"]),
        (lambda document: misplaced(document, apart=False), 1, ["a", "b"]),
        (lambda document: "no counters here" if "sharedCounters" in document["spec"] else "", 1, ["a"]),
    ],
    ids=["apart", "together", "neither"],
)
async def test_counters_are_where_the_server_wants_them(refused, slices, devices):
    stage = Counting(refused)
    task = asyncio.create_task(stage.publisher.run())
    stage.known()
    try:
        await stage.until(lambda: len(stage.api.there) == slices and stage.api.names() == devices)
        await stage.settled()
        writes = stage.api.writes
        stage.publisher.look()
        await stage.settled()
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert stage.api.writes == writes
    assert ("ResourceSliceFieldsDropped" in stage.reasons()) == (devices == ["a"])
