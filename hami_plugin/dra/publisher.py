"""Keeps one driver's ResourceSlices equal to what the node has: compared with what is there, written where they differ.

It is level-triggered: each change of the devices, of what holds them, of the node or of the slices makes it look anew.
The kubelet deletes all slices of its node when it starts, and those of a driver that is away for 30 s; they are written
again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from hami_plugin.dra.cuts import card_profiles, left_beside
from hami_plugin.dra.cuts import pool as with_partitions
from hami_plugin.dra.sets import Counted, LinkedSet, can_make_sets, linked_sets
from hami_plugin.dra.sets import pool as with_sets
from hami_plugin.dra.slices import (
    Offered,
    Pool,
    PoolContents,
    PublishedSlice,
    Taints,
    Writes,
    counter_set_problem,
    devices,
    normalize,
    offered_devices,
    offered_with_links,
    same_document,
    slice_view,
    writes,
)
from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Links, Snapshot
from hami_plugin.model.ports import NullObserver, Observer
from hami_plugin.model.views import Feed, Json, revision
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import FamilySource, LiveNode
from hami_plugin.partitions.life import BLOCKING, ENDING, Entry
from hami_plugin.partitions.manager import Partitions
from hami_plugin.process.concurrency import Backoff, StuckError, Watched, WorkThread, wait_event
from hami_plugin.process.log import logger
from hami_plugin.sdk.partitions import Sized

log = logger(__name__)

LOOK_S = 30.0
"""Between looks while nothing is reported."""
FEATURE = "DRAConsumableCapacity"
TAINTS = "DRADeviceTaints"
COUNTERS = "DRAPartitionableDevices"
SETS_S = 60.0
"""For finding out the sets of many cards, which takes a second where no two of them are alike."""


class SliceCluster(Protocol):
    """The API server's ResourceSlices, as far as a driver writes them. Calls raise ``ClusterError``."""

    async def create_slice(self, document: Json) -> Json: ...

    async def update_slice(self, document: Json) -> Json:
        """Replace the one of that name and version."""

    async def delete_slice(self, name: str, *, uid: str) -> None: ...


class NodeSlices:
    """All slices of this node, of whatever driver, as the watch and our own writes show them.

    ``listed``: all are known.
    """

    def __init__(self) -> None:
        self.changes: Watched[int] = Watched(0)
        self.listed = False
        self._slices: dict[str, PublishedSlice] = {}

    @property
    def feed(self) -> Feed[PublishedSlice]:
        return Feed(replace=self._replace, update=self.take, delete=self.gone)

    def of(self, driver: str) -> dict[str, PublishedSlice]:
        """By name."""
        return {name: one for name, one in self._slices.items() if one.driver == driver}

    def take(self, one: PublishedSlice) -> None:
        """A slice was written, by us or by others. An older view of it changes nothing."""
        known = self._slices.get(one.name)
        if known and revision(known.version) >= revision(one.version):
            return
        self._slices[one.name] = one
        self._changed()

    def gone(self, one: PublishedSlice) -> None:
        """A slice was deleted. One that was written again under the name stays."""
        known = self._slices.get(one.name)
        if known and known.uid == one.uid:
            del self._slices[one.name]
            self._changed()

    def _replace(self, found: Sequence[PublishedSlice]) -> None:
        self._slices = {one.name: one for one in found}
        self.listed = True
        self._changed()

    def _changed(self) -> None:
        self.changes.set(self.changes.value + 1)


class SlicePublisher:
    """One driver's. ``withheld`` are UUIDs that are not offered now: containers have them by the device plugin.

    ``sets``: linked cards are published in sets too, if the API server keeps counters. ``held`` are names of devices
    that claims have. ``cut`` makes partitions, by the device type of their cards, which are published in their places.
    """

    def __init__(
        self,
        driver: str,
        sources: Sequence[FamilySource],
        cluster: SliceCluster,
        slices: NodeSlices,
        *,
        node: LiveNode,
        node_name: str,
        events: EventRecorder,
        withheld: Callable[[], AbstractSet[str]] = frozenset,
        held: Callable[[], AbstractSet[str]] = frozenset,
        taints: Taints = Taints.OFF,
        sets: bool = False,
        cut: Mapping[str, Partitions] | None = None,
        observer: Observer | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.driver = driver
        self.problem = "no slice is written yet"
        self.limitation = ""
        """What the API server does not keep of slices that are published all the same."""
        self._node_name = node_name
        self._sources = sources
        self._cluster = cluster
        self._slices = slices
        self._node = node
        self._events = events
        self._withheld = withheld
        self._held = held
        self._taints = taints
        self._sets = sets
        self._cut = {} if cut is None else cut
        self._uncounted = ""
        self._together = False
        self._thread = WorkThread(f"sets of {driver}")
        self._linked: dict[int, tuple[Links, tuple[str, ...], tuple[LinkedSet, ...]]] = {}
        self._offers: dict[int, tuple[Snapshot, tuple[Offered, ...]]] = {}
        self._observer = observer or NullObserver()
        self._announced: tuple[int, int] | None = None
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._wake = asyncio.Event()
        self._dropped: dict[str, tuple[Any, Any]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            watched: list[Watched[Any]] = [self._slices.changes, self._node]
            watched += [source.snapshot for source in self._sources]
            watched += [partitions.cuttable for partitions in self._cut.values()]
            for value in watched:
                group.create_task(self._follow(value), name=f"slices of {self.driver}")
            group.create_task(self._publish(), name=f"publisher of {self.driver}")

    def look(self) -> None:
        """What is withheld may have changed."""
        self._wake.set()

    async def _follow(self, value: Watched[Any]) -> None:
        while not value.closed:
            seen = value.version
            self._wake.set()
            await value.changed(seen)

    async def _publish(self) -> None:
        delays = self._backoff.delays()
        while True:
            self._wake.clear()
            try:
                await self._write()
            except (ClusterError, StuckError) as error:
                if str(error) != self.problem:
                    log.warning("slices not written", driver=self.driver, why=str(error))
                self.problem = str(error)
                asked = error.retry_after if isinstance(error, ClusterError) else None
                await asyncio.sleep(max(next(delays), asked or 0.0))
                continue
            delays = self._backoff.delays()
            await wait_event(self._wake, within=LOOK_S)

    async def _write(self) -> None:
        """Write what differs. What the API server answers is what is there."""
        node = self._node.value
        if node is None or not node.uid or not self._slices.listed:
            self.problem = "the API server has not listed the node and its slices yet"
            return
        if not all(source.snapshot.value.ready or source.snapshot.value.devices for source in self._sources):
            self.problem = "the devices are not known yet"
            return
        if unknown := next((one.problem for one in self._cut.values() if one.cuttable.value is None), ""):
            self.problem = f"what cards may be cut into is not known yet: {unknown}"
            return
        place = Pool(driver=self.driver, node=self._node_name, node_uid=node.uid)
        wanted = await self._wanted()
        if self._together and (why := counter_set_problem(wanted)):
            self._keeps_no_counters(why)
            wanted = await self._wanted()
        todo = writes(place, wanted, self._slices.of(self.driver), self._same, together=self._together)
        if todo:
            await self._carry_out(todo)
            log.info(
                "slices written",
                driver=self.driver,
                created=len(todo.creates),
                updated=len(todo.updates),
                deleted=len(todo.deletes),
            )
        self._report()
        self._announce()

    @property
    def published(self) -> tuple[int, int, int]:
        """How many slices of this driver there are, their newest generation, and how many devices they have."""
        there = self._slices.of(self.driver).values()
        generation = max((one.generation for one in there), default=0)
        return len(there), generation, sum(len(one.spec.get("devices") or ()) for one in there)

    def _announce(self) -> None:
        """An Event when there are more devices or fewer, and when all slices were renumbered."""
        slices, generation, count = self.published
        if self._announced != (generation, count):
            self._announced = (generation, count)
            what = f"{self.driver}: {count} devices in {slices} ResourceSlices, generation {generation}"
            self._events.node("ResourceSlicesPublished", what, warning=False)

    async def _wanted(self) -> PoolContents:
        """Of each family: cards with their sets, or the cards alone."""
        wanted, alone = PoolContents(), list[Offered]()
        for number, source in enumerate(self._sources):
            snapshot = source.snapshot.value
            if partitions := self._cut.get(source.family.resources.device_type):
                side = source.family.node.partitions
                if side and side.sized:
                    alone += self._by_amounts(source, side.sized, partitions)
                elif side and side.whole and self._uncounted:
                    alone += offered_devices(source.family, snapshot)
                else:
                    wanted = wanted.with_part(self._partitions(source, partitions))
                continue
            cards = offered_devices(source.family, snapshot) if self._sets and not self._uncounted else ()
            if not can_make_sets(cards, snapshot.links):
                alone += self._grouped(number, source, snapshot)
                continue
            part = with_sets(
                Counted(cards=cards, number=number),
                snapshot.links,
                await self._linked_sets(number, cards, snapshot.links),
                self._withheld(),
                held=self._held(),
                driver=self.driver,
                taints=self._taints,
            )
            wanted = wanted.with_part(part)
        alone.sort(key=lambda one: (one.lessened, one.device.order))  # who asks for no amount means all of a card
        rest = devices(alone, self._withheld(), driver=self.driver, taints=self._taints)
        return wanted.with_part(PoolContents(devices=rest))

    def _partitions(self, source: FamilySource, partitions: Partitions) -> PoolContents:
        """What the family's cards may be cut into, beside what is there of others or cannot be destroyed."""
        cards = card_profiles(source.family, offered_devices(source.family, source.snapshot.value), partitions.profiles)
        return with_partitions(
            () if self._uncounted else list(cards),
            _nobodys(partitions),
            self._withheld(),
            held=self._held(),
            driver=self.driver,
            taints=self._taints,
        )

    def _by_amounts(self, source: FamilySource, sized: Sized, partitions: Partitions) -> Iterator[Offered]:
        """Cards of which partitions of any size are made, less what is there of others or cannot be destroyed."""
        there, held = _nobodys(partitions), self._held()
        for one in offered_devices(source.family, source.snapshot.value):
            left = left_beside(one, sized, there)
            if one.name in held or (left.cores and left.memory):
                yield left

    def _grouped(self, number: int, source: FamilySource, snapshot: Snapshot) -> tuple[Offered, ...]:
        if number not in self._offers or self._offers[number][0] is not snapshot:
            self._offers[number] = snapshot, offered_with_links(source.family, snapshot)
        return self._offers[number][1]

    async def _linked_sets(self, number: int, cards: Sequence[Offered], links: Links) -> tuple[LinkedSet, ...]:
        """Found out anew for other cards or links alone: health changes nothing in them."""
        uuids = tuple(one.device.uuid for one in cards)
        known = self._linked.get(number)
        if known is None or known[:2] != (links, uuids):
            found = await self._thread.call(partial(linked_sets, cards, links), SETS_S)
            known = self._linked[number] = links, uuids, found
        return known[2]

    async def _carry_out(self, todo: Writes) -> None:
        """Write, until the API server is seen to keep no counters, or in another way: what follows is another then."""
        for one in todo.deletes:
            try:
                await self._cluster.delete_slice(one.name, uid=one.uid)
            except ClusterError as error:
                if not error.not_found:
                    raise
            self._slices.gone(one)
            self._dropped.pop(one.name, None)
            self._observer.slice_write(self.driver, "delete")
        for verb, document in (*(("update", one) for one in todo.updates), *(("create", one) for one in todo.creates)):
            before = self._uncounted, self._together
            await self._put(verb, document)
            if before != (self._uncounted, self._together):
                return

    async def _put(self, verb: str, document: Json) -> None:
        write = self._cluster.update_slice if verb == "update" else self._cluster.create_slice
        try:
            answer = await write(document)
        except ClusterError as error:
            if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and (_counters(document) or _consuming(document)):
                if self._together:
                    self._keeps_no_counters(str(error))
                else:
                    log.info("counters go into the slices of their devices", driver=self.driver, why=str(error))
                    self._together = True  # as Kubernetes 1.34 wants it
                    self._wake.set()
                return
            if error.not_found or error.conflict:  # the watch will say what is there now; there may be no event more
                self._slices.gone(slice_view(document))
            raise
        self._took(document, answer)
        self._observer.slice_write(self.driver, verb)

    def _keeps_no_counters(self, why: str) -> None:
        self._uncounted = (
            f"the API server keeps no counters of ResourceSlices, so linked devices are published in groups and not "
            f"in sets, and partitions not at all: {why}; switch the feature gate {COUNTERS} on (Kubernetes 1.36 has it "
            f"on) and restart the daemon"
        )
        log.warning("counters of slices dropped", driver=self.driver, why=why)
        self._wake.set()
        self._events.node("ResourceSliceFieldsDropped", self._uncounted)

    def _took(self, document: Json, answer: Json) -> None:
        """Note what the API server has made of a slice: fields that it does not know, or has switched off, are gone."""
        one = slice_view(answer)
        if self._taints is not Taints.OFF and _tainted(document) and not _tainted(answer):
            # A device that is unwell must not look well: from now on it is left out.
            log.warning("taints of slices dropped", driver=self.driver, hint=f"switch {TAINTS} on")
            self._taints = Taints.OFF
            self._wake.set()
        if _counters(document) and not _counters(answer):
            self._keeps_no_counters("the field sharedCounters is gone")
            self._slices.take(one)
            return
        if same_document(document, answer):
            self._dropped.pop(one.name, None)
        else:
            self._dropped[one.name] = (normalize(document), normalize(answer))
        self._slices.take(one)

    def _same(self, document: Json, there: Json) -> bool:
        """Whether writing it again would change nothing."""
        name = str(document.get("metadata", {}).get("name", ""))
        return same_document(document, there) or self._dropped.get(name) == (normalize(document), normalize(there))

    def _report(self) -> None:
        self.problem, limitation = self._uncounted if self._cut else "", ""
        if self._dropped:
            limitation = (
                f"the API server does not keep all of the ResourceSlice {min(self._dropped)}, so that devices are "
                f"given out whole or not at all; switch the feature gate {FEATURE} on (Kubernetes 1.36 has it on)"
            )
        if limitation and limitation != self.limitation:
            log.warning("fields of slices dropped", driver=self.driver, why=limitation)
            self._events.node("ResourceSliceFieldsDropped", limitation)
        self.limitation = limitation


def _nobodys(partitions: Partitions) -> list[Entry]:
    """Partitions that no claim has, and that do not go at once."""
    entries = partitions.entries.values()
    return [one for one in entries if one.state in BLOCKING and (one.attempts or one.state not in ENDING)]


def _consuming(document: Json) -> bool:
    return any(device.get("consumesCounters") for device in document.get("spec", {}).get("devices") or ())


def _counters(document: Json) -> bool:
    return bool(document.get("spec", {}).get("sharedCounters"))


def _tainted(document: Json) -> bool:
    return any(device.get("taints") for device in document.get("spec", {}).get("devices") or ())
