"""Keeps the node's annotations equal to what it has: compared with the live node, written only when they differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import NodeApi
from hami_plugin.model.views import NodeView, revision
from hami_plugin.node_status.annotations import FamilySource, Style, Wanted, desired_annotations, fit_to_node
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.labels import labelling, wanted_labels
from hami_plugin.process.concurrency import Backoff, Watched
from hami_plugin.process.log import logger
from hami_plugin.protocol.nodes import render_answer
from hami_plugin.sdk import Family


class LiveNode(Watched[NodeView | None]):
    """The newest known view of the node; None before the first answer, and while the node does not exist."""

    def __init__(self) -> None:
        super().__init__(None)

    def deliver(self, node: NodeView | None) -> None:
        """Take a view from the watch, or the answer to a patch of ours. An older one of the same node is dropped."""
        known = self.value
        if (
            node
            and known
            and node.uid == known.uid
            and revision(node.resource_version) < revision(known.resource_version)
        ):
            return
        self.set(node)


log = logger(__name__)

T = TypeVar("T")


class Registration:
    """Publishes all families' annotations of this node in one patch."""

    def __init__(
        self,
        cluster: NodeApi,
        sources: Sequence[FamilySource],
        *,
        node: LiveNode,
        events: EventRecorder,
        style: Style,
        now: Callable[[], datetime],
        taken: Callable[[], AbstractSet[str]] = frozenset,
        labelled: Callable[[], Iterable[FamilySource]] | None = None,
        backoff: Backoff | None = None,
        together: float = 0.1,
    ) -> None:
        self.problem = "not written yet"
        self.settled = False
        """Whether the node has all that was known when it was looked last, and nothing has changed since."""
        self._cluster = cluster
        self._sources = sources
        self._node = node
        self._events = events
        self._style = style
        self._now = now
        self._taken = taken
        self._labelled = labelled
        self._unlabelled: ClusterError | None = None
        self._foreign: tuple[str, ...] = ()
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._together = together
        self._wake = asyncio.Event()
        self._beat = float("-inf")
        self._retry = False
        self._needs_taken = any(source.family.node.tells_taken for source in sources)

    async def run(self) -> None:
        """Compare and write for ever, woken by every change of a snapshot or of the node."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(
                    self._wake_by(source.snapshot), name=f"registration of {source.family.resources.device_type}"
                )
                if source.cuttable:
                    name = f"registration of {source.family.resources.device_type}'s places"
                    group.create_task(self._wake_by(source.cuttable), name=name)
            group.create_task(self._wake_by(self._node), name="registration of the node")
            group.create_task(self._publish(), name="registration")

    async def _wake_by(self, watched: Watched[T]) -> None:
        async for _value in watched.follow():
            self.settled = False
            self._wake.set()

    async def _publish(self) -> None:
        delays, retries = self._backoff.delays(), self._backoff.delays()
        again = self._needs_taken or any(self._reports(one.family) for one in self._sources)
        while True:
            self._wake.clear()
            pause = self._together  # changes that come together are written together
            try:
                await self._converge()
                self.settled = not (self.problem or self._wake.is_set())
                delays = self._backoff.delays()
            except ClusterError as error:
                self.problem = error.message
                log.warning("node annotations not written", problem=error.message, status=error.status)
                pause = max(next(delays), error.retry_after or 0.0)
                self._wake.set()
            await asyncio.sleep(pause)
            waits = [self._until_beat()] if again or self._labelled else []
            if self._retry:  # nothing need change for a vendor's code to succeed another time
                waits.append(next(retries))
            else:
                retries = self._backoff.delays()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()

    async def _converge(self) -> None:
        """One comparison. What the server confirms comes back as the live node; nothing else is remembered."""
        node = self._node.value
        if node is None:
            self.problem = "the node is not known from the API server yet"
            return
        wanted, problem = self._wanted(node.annotations)
        changes = {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
        beat = self._heartbeat(written=bool(changes))
        changes |= beat
        if changes:
            self._node.deliver(await self._cluster.patch_node(changes))
            log.info("node annotations written", keys=sorted(changes))
        if beat:
            self._beat = time.monotonic()
        await self._label()
        known = wanted or any(source.snapshot.value.ready for source in self._sources)
        self.problem = problem or ("" if known else "no devices are known yet")

    async def _label(self) -> None:
        """Bring the node's labels up to date. Nothing depends on them: what fails is tried again."""
        node = self._node.value
        if node is None:
            return
        wanted, complete = wanted_labels(self._labelled()) if self._labelled else ({}, True)
        found = labelling(node, wanted, complete=complete)
        if found.foreign and found.foreign != self._foreign:
            others = ", ".join(found.foreign[:5])
            self._events.node("LabelsOfOthers", f"not written, as somebody else has set them: {others}")
        self._foreign = found.foreign
        if not (found.labels or found.annotations):
            self._unlabelled = None
            return
        try:
            self._node.deliver(await self._cluster.patch_node(found.annotations, labels=found.labels))
        except ClusterError as error:
            self._retry = True
            if self._unlabelled is None or self._unlabelled.message != error.message:
                log.warning("node labels not written", problem=error.message, status=error.status)
            self._unlabelled = error
        else:
            self._unlabelled = None
            log.info("node labels written", keys=sorted(found.labels))

    def _wanted(self, live: Mapping[str, str]) -> tuple[Wanted, str]:
        """What all families want, and why some are not written down, whose former annotations stay."""
        taken = self._taken() if self._needs_taken else frozenset()
        desired = list(desired_annotations(self._sources, self._style, taken))
        problems = [one.problem for one in desired if one.problem]
        for problem in problems:
            self._events.node("NotRegistered", problem)
        self._retry = any(one.retry for one in desired)
        patch = fit_to_node([one for one in desired if one.wanted], live)
        if patch.problem:
            self._events.node("AnnotationsTooLarge", patch.problem)
        if patch.dropped:
            problems.append(patch.problem)
        problems += [one.pending for one in desired if one.pending]
        return patch.wanted, "; ".join(problems)

    def _heartbeat(self, *, written: bool) -> dict[str, str | None]:
        """HAMi 2.7's scheduler forgets a node that does not report itself; later ones do so with some families only."""
        asked = [source for source in self._sources if self._reports(source.family)]
        if not asked or (not written and time.monotonic() - self._beat < self._style.heartbeat):
            return {}
        present = [s.family for s in asked if s.snapshot.value.ready and s.snapshot.value.devices]
        return {family.rules.annotations.handshake: render_answer(self._now()) for family in present}

    def _until_beat(self) -> float:
        """Seconds to the next heartbeat, counted from the last one: what changes meanwhile does not put it off."""
        left = self._beat + self._style.heartbeat - time.monotonic()
        return left if left > 0 else self._style.heartbeat

    def _reports(self, family: Family) -> bool:
        return bool(family.rules.annotations.handshake) and (self._style.legacy or family.node.reports)
