"""Keeps one driver's ResourceSlices equal to what the node has: compared with what is there, written where they differ.

It is level-triggered: each change of the devices, of what holds them, of the node or of the slices makes it look anew.
The kubelet deletes all slices of its node when it starts, and those of a driver that is away for 30 s; they are written
again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from hami_plugin.aio import Backoff, Watched, happened
from hami_plugin.dra.slices import (
    Offered,
    Pool,
    PublishedSlice,
    Taints,
    Writes,
    alike,
    devices,
    grouped,
    normal,
    slice_view,
    writes,
)
from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import NullObserver, Observer
from hami_plugin.model.views import Feed, Json, revision
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import LiveNode

log = logger(__name__)

LOOK_S = 30.0
"""Between looks while nothing is reported."""
FEATURE = "DRAConsumableCapacity"
TAINTS = "DRADeviceTaints"


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
    """One driver's. ``withheld`` are UUIDs that are not offered now: containers have them by the device plugin."""

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
        taints: Taints = Taints.OFF,
        observer: Observer | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.driver = driver
        self.problem = "no slice is written yet"
        self._node_name = node_name
        self._sources = sources
        self._cluster = cluster
        self._slices = slices
        self._node = node
        self._events = events
        self._withheld = withheld
        self._taints = taints
        self._offers: dict[int, tuple[Snapshot, tuple[Offered, ...]]] = {}
        self._observer = observer or NullObserver()
        self._told: tuple[int, int] | None = None
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._wake = asyncio.Event()
        self._dropped: dict[str, tuple[Any, Any]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            watched: list[Watched[Any]] = [self._slices.changes, self._node.view]
            for value in (*watched, *(source.snapshot for source in self._sources)):
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
            except ClusterError as error:
                if str(error) != self.problem:
                    log.warning("slices not written", driver=self.driver, why=str(error))
                self.problem = str(error)
                await asyncio.sleep(max(next(delays), error.retry_after or 0.0))
                continue
            delays = self._backoff.delays()
            await happened(self._wake, within=LOOK_S)

    async def _write(self) -> None:
        """Write what differs. What the API server answers is what is there."""
        node = self._node.value
        if node is None or not node.uid or not self._slices.listed:
            self.problem = "the API server has not listed the node and its slices yet"
            return
        if not all(source.snapshot.value.ready or source.snapshot.value.devices for source in self._sources):
            self.problem = "the devices are not known yet"
            return
        place = Pool(driver=self.driver, node=self._node_name, node_uid=node.uid)
        todo = writes(place, self._wanted(), self._slices.of(self.driver), self._same)
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
        self._tell()

    @property
    def published(self) -> tuple[int, int, int]:
        """How many slices of this driver there are, their newest generation, and how many devices they have."""
        there = self._slices.of(self.driver).values()
        generation = max((one.generation for one in there), default=0)
        return len(there), generation, sum(len(one.spec.get("devices") or ()) for one in there)

    def _tell(self) -> None:
        """An Event when there are more devices or fewer, and when all slices were renumbered."""
        slices, generation, count = self.published
        if self._told != (generation, count):
            self._told = (generation, count)
            what = f"{self.driver}: {count} devices in {slices} ResourceSlices, generation {generation}"
            self._events.node("ResourceSlicesPublished", what, warning=False)

    def _wanted(self) -> list[dict[str, Any]]:
        every: list[Offered] = []
        for number, source in enumerate(self._sources):
            snapshot = source.snapshot.value
            if number not in self._offers or self._offers[number][0] is not snapshot:
                self._offers[number] = snapshot, grouped(source.family, snapshot)
            every += self._offers[number][1]
        return devices(every, self._withheld(), driver=self.driver, taints=self._taints)

    async def _carry_out(self, todo: Writes) -> None:
        for one in todo.deletes:
            try:
                await self._cluster.delete_slice(one.name, uid=one.uid)
            except ClusterError as error:
                if not error.not_found:
                    raise
            self._slices.gone(one)
            self._dropped.pop(one.name, None)
            self._observer.slice_write(self.driver, "delete")
        for document in todo.updates:
            try:
                self._took(document, await self._cluster.update_slice(document))
                self._observer.slice_write(self.driver, "update")
            except ClusterError as error:
                if (
                    error.not_found or error.conflict
                ):  # the watch will say what is there now; there may be no event more
                    self._slices.gone(slice_view(document))
                raise
        for document in todo.creates:
            self._took(document, await self._cluster.create_slice(document))
            self._observer.slice_write(self.driver, "create")

    def _took(self, document: Json, answer: Json) -> None:
        """Note what the API server has made of a slice: fields that it does not know, or has switched off, are gone."""
        one = slice_view(answer)
        if self._taints is not Taints.OFF and _tainted(document) and not _tainted(answer):
            # A device that is unwell must not look well: from now on it is left out.
            log.warning("taints of slices dropped", driver=self.driver, hint=f"switch {TAINTS} on")
            self._taints = Taints.OFF
            self._wake.set()
        if alike(document, answer):
            self._dropped.pop(one.name, None)
        else:
            self._dropped[one.name] = (normal(document), normal(answer))
        self._slices.take(one)

    def _same(self, document: Json, there: Json) -> bool:
        """Whether writing it again would change nothing."""
        name = str(document.get("metadata", {}).get("name", ""))
        return alike(document, there) or self._dropped.get(name) == (normal(document), normal(there))

    def _report(self) -> None:
        problem = ""
        if self._dropped:
            problem = (
                f"the API server does not keep all of the ResourceSlice {min(self._dropped)}, so that devices are "
                f"given out whole or not at all; switch the feature gate {FEATURE} on (Kubernetes 1.36 has it on)"
            )
        if problem and problem != self.problem:
            log.warning("fields of slices dropped", driver=self.driver, why=problem)
            self._events.node("ResourceSliceFieldsDropped", problem)
        self.problem = problem


def _tainted(document: Json) -> bool:
    return any(device.get("taints") for device in document.get("spec", {}).get("devices") or ())
