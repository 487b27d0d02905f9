"""Keeps the node's annotations equal to what it has: compared with the live node, written only when they differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from hami_plugin.aio import Backoff, Watched
from hami_plugin.errors import ClusterError, WireError
from hami_plugin.log import logger
from hami_plugin.model.device import Snapshot
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.live import LiveNode
from hami_plugin.node.ports import Cluster
from hami_plugin.vendor import Family
from hami_plugin.wire.handshake import reported
from hami_plugin.wire.nodes import encode_json, encode_legacy, score_annotation

log = logger(__name__)

T = TypeVar("T")

MOST_ANNOTATION_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A family of a vendor, and the snapshot that its annotations are drawn from."""

    family: Family
    snapshot: Watched[Snapshot]
    vendor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """``legacy`` is HAMi 2.7's text. A handshake is written every ``heartbeat`` seconds where one is needed."""

    legacy: bool = False
    scores: bool = True
    heartbeat: float = 30.0


def wanted_annotations(
    family: Family, snapshot: Snapshot, style: Style, taken: AbstractSet[str] = frozenset()
) -> dict[str, str | None]:
    """What a family wants the node to say, None for what it should say no more. ``taken`` are devices in use.

    Nothing before its devices are known: a former word stays until then, and goes when there are none.
    """
    if not snapshot.devices:
        keys = (family.annotations.register, family.annotations.score, family.annotations.handshake)
        return {**{key: None for key in keys if key}, **family.announce(snapshot, taken)} if snapshot.ready else {}
    wanted: dict[str, str | None] = {**family.node_notes, **family.announce(snapshot, taken)}
    if family.annotations.register:
        infos = [family.register(device, style.legacy) for device in snapshot.devices]
        encode = family.encode or (encode_legacy if style.legacy else encode_json)
        wanted[family.annotations.register] = encode(infos)
    if style.scores and family.annotations.score:
        uuids = [device.uuid for device in snapshot.devices]
        wanted[family.annotations.score] = score_annotation(snapshot.links, uuids)
    return wanted


class Registration:
    """Publishes all families' annotations of this node in one patch."""

    def __init__(
        self,
        cluster: Cluster,
        sources: Sequence[Source],
        *,
        node: LiveNode,
        events: EventRecorder,
        style: Style,
        now: Callable[[], datetime],
        taken: Callable[[], AbstractSet[str]] = frozenset,
        backoff: Backoff | None = None,
        together: float = 0.1,
    ) -> None:
        self.problem = "not written yet"
        self._cluster = cluster
        self._sources = sources
        self._node = node
        self._events = events
        self._style = style
        self._now = now
        self._taken = taken
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._together = together
        self._wake = asyncio.Event()
        self._beat = float("-inf")

    async def run(self) -> None:
        """Compare and write for ever, woken by every change of a snapshot or of the node."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._wake_by(source.snapshot), name=f"registration of {source.family.word}")
            group.create_task(self._wake_by(self._node.view), name="registration of the node")
            group.create_task(self._publish(), name="registration")

    async def _wake_by(self, watched: Watched[T]) -> None:
        async for _value in watched.follow():
            self._wake.set()

    async def _publish(self) -> None:
        delays = self._backoff.delays()
        again = any(self._reports(one.family) or one.family.tells_taken for one in self._sources)
        while True:
            self._wake.clear()
            pause = self._together  # changes that come together are written together
            try:
                await self._converge()
                delays = self._backoff.delays()
            except ClusterError as error:
                self.problem = error.message
                log.warning("node annotations not written", problem=error.message, status=error.status)
                pause = max(next(delays), error.retry_after or 0.0)
                self._wake.set()
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(self._style.heartbeat if again else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _converge(self) -> None:
        """One comparison. What the server confirms comes back as the live node; nothing else is remembered."""
        node = self._node.value
        if node is None:
            self.problem = "the node is not known from the API server yet"
            return
        wanted, problem = self._wanted()
        wanted = self._within_limit(wanted, node.annotations)
        changes = {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
        beat = self._heartbeat(written=bool(changes))
        changes |= beat
        if changes:
            self._node.deliver(await self._cluster.patch_node(changes))
            log.info("node annotations written", keys=sorted(changes))
        if beat:
            self._beat = time.monotonic()
        known = wanted or any(source.snapshot.value.ready for source in self._sources)
        self.problem = problem or ("" if known else "no devices are known yet")

    def _wanted(self) -> tuple[dict[str, str | None], str]:
        """What all families want, and what is wrong with those that cannot be written down. Those keep their word."""
        wanted: dict[str, str | None] = {}
        problems = []
        taken = self._taken()
        for source in self._sources:
            try:
                wanted |= wanted_annotations(source.family, source.snapshot.value, self._style, taken)
            except WireError as error:
                problems.append(f"{source.family.word}: {error}")
                self._events.node("NotRegistered", problems[-1])
        return wanted, "; ".join(problems)

    def _heartbeat(self, *, written: bool) -> dict[str, str | None]:
        """HAMi 2.7's scheduler forgets a node that does not report itself; later ones do so with some families only."""
        asked = [source for source in self._sources if self._reports(source.family)]
        if not asked or (not written and time.monotonic() - self._beat < self._style.heartbeat):
            return {}
        present = [s.family for s in asked if s.snapshot.value.ready and s.snapshot.value.devices]
        return {family.annotations.handshake: reported(self._now()) for family in present}

    def _reports(self, family: Family) -> bool:
        return bool(family.annotations.handshake) and (self._style.legacy or family.reports)

    def _within_limit(self, wanted: dict[str, str | None], live: Mapping[str, str]) -> dict[str, str | None]:
        """Leave the scores out rather than make the API server refuse the whole node."""
        total = sum(len(key.encode()) + len((value or "").encode()) for key, value in {**live, **wanted}.items())
        if total <= MOST_ANNOTATION_BYTES:
            return wanted
        optional = {source.family.annotations.score for source in self._sources}
        self._events.node("AnnotationsTooLarge", f"{total} bytes of annotations; the scores are left out")
        return {key: None if key in optional else value for key, value in wanted.items()}
