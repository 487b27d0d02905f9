"""Kubernetes Events: reasons where people look for them. Bounded, without repeats, and never waited for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from http import HTTPStatus
from itertools import count
from typing import Any, Protocol

from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Subject
from hami_plugin.model.views import PodView
from hami_plugin.process.concurrency import Backoff
from hami_plugin.process.log import logger

log = logger(__name__)

AWAY = (0, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers of a server that takes nothing from anybody: none at all, and too many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One Event to be written."""

    subject: Subject
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An Event, and when it was told, in seconds since 1970."""

    event: Event
    time: float


@dataclass(slots=True, kw_only=True, order=True)
class _PendingEvent:
    """An Event that was not taken yet. Times of the event loop, in seconds."""

    due: float = 0.0
    number: int = 0
    event: Event = field(compare=False)
    delays: Iterator[float] = field(compare=False)
    tries: int = field(default=0, compare=False)


class Recipient(Protocol):
    """Who takes Events. ``ClusterError`` when it does not."""

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None: ...


class EventRecorder:
    """Queues Events and writes them one by one. The same text about the same object is written once in ten minutes.

    Each is tried again by itself: one that the API server does not take holds up no other.
    """

    MAX_RECENT = 50
    MAX_WAITING = 256
    MAX_REPORTED = 1024
    REPEAT_AFTER_S = 600.0
    MAX_PODS = 4
    MAX_TRIES = 12
    SUCCESS_EVERY_S = 0.2
    MAX_SUCCESSES = 100
    """Of a burst. After it one in ``SUCCESS_EVERY_S`` is written: each costs the API server as much as a decision."""

    def __init__(
        self,
        cluster: Recipient,
        node_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
    ) -> None:
        self.recent: deque[RecordedEvent] = deque(maxlen=self.MAX_RECENT)
        """The last Events, whether or not the API server has them."""
        self._cluster = cluster
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._node = Subject(kind="Node", name=node_name, uid=node_name)
        self._clock = clock
        self._queue: asyncio.Queue[Event] = asyncio.Queue(self.MAX_WAITING)
        self._reported: dict[tuple[Subject, str, str], float] = {}
        self._again: list[_PendingEvent] = []
        self._under_way = 0
        self._numbers = count()
        self._away_until = 0.0
        self._away = self._backoff.delays()
        self._full = False
        self._successes_due = float("-inf")

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """An Event about this node."""
        self._put(Event(subject=self._node, reason=reason, message=message, warning=warning))

    def refused(self, pods: Sequence[PodView], reason: str, message: str) -> None:
        """A refusal, written to every pod that it is about; to the node when it is about none."""
        if not pods:
            self.node(reason, message)
        for pod in pods[: self.MAX_PODS]:
            self.pod(pod, reason, message, warning=True)

    def pod(self, pod: PodView, reason: str, message: str, *, warning: bool) -> None:
        """An Event about a pod. Of many successes at once some are left out: the pods themselves say them."""
        subject = Subject(kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid)
        self._put(Event(subject=subject, reason=reason, message=message, warning=warning))

    async def run(self) -> None:
        """Write what is queued, for ever. An Event that the API server will not take is dropped, and logged."""
        now = asyncio.get_running_loop().time
        while True:
            attempt, self._under_way = await self._next(), 1
            await asyncio.sleep(max(0.0, self._away_until - now()))
            await self._try(attempt)
            self._under_way = 0

    async def _next(self) -> _PendingEvent:
        """The one whose time has come, else a new one."""
        now = asyncio.get_running_loop().time
        while True:
            if self._again and self._again[0].due <= now():
                return heappop(self._again)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._again[0].due if self._again else None):
                    return self._first(await self._queue.get())

    def _first(self, event: Event) -> _PendingEvent:
        return _PendingEvent(number=next(self._numbers), event=event, delays=self._backoff.delays())

    async def _write(self, event: Event) -> None:
        await self._try(self._first(event))

    async def _try(self, attempt: _PendingEvent) -> None:
        """Try once; later again if that may help, for some minutes: the reason is still worth reading then."""
        event = attempt.event
        try:
            await self._cluster.create_event(
                event.subject, reason=event.reason, message=event.message, warning=event.warning
            )
        except ClusterError as error:
            problem = error
        else:
            self._away = self._backoff.delays()
            return
        now = asyncio.get_running_loop().time()
        if problem.status in AWAY:
            # Nobody else's Event would be taken either, so all wait.
            self._away_until = now + max(next(self._away), problem.retry_after or 0.0)
        attempt.tries += 1
        if not _worth_another_try(problem) or attempt.tries >= self.MAX_TRIES:
            log.warning("event not written", reason=event.reason, about=event.subject.name, problem=problem.message)
            return
        attempt.due = now + max(next(attempt.delays), problem.retry_after or 0.0)
        heappush(self._again, attempt)

    def _put(self, event: Event) -> None:
        now = self._clock()
        key = (event.subject, event.reason, event.message)
        if now - self._reported.get(key, float("-inf")) < self.REPEAT_AFTER_S:
            return
        self.recent.append(RecordedEvent(event=event, time=time.time()))
        if not event.warning and not self._take_success(now):
            return
        if len(self._reported) >= self.MAX_REPORTED:  # the older half goes; at worst an Event is repeated too early
            self._reported = dict(list(self._reported.items())[self.MAX_REPORTED // 2 :])
        if self._queue.qsize() + len(self._again) + self._under_way >= self.MAX_WAITING:
            if not self._full:
                log.warning("events dropped: too many wait", reason=event.reason, about=event.subject.name)
            self._full = True
            return
        self._queue.put_nowait(event)
        self._full = False
        self._reported.pop(key, None)
        self._reported[key] = now

    def _take_success(self, now: float) -> bool:
        """Whether one more success may be told."""
        due = max(self._successes_due, now - self.MAX_SUCCESSES * self.SUCCESS_EVERY_S) + self.SUCCESS_EVERY_S
        if due > now:
            return False
        self._successes_due = due
        return True


def _worth_another_try(problem: ClusterError) -> bool:
    """Whether the same Event may be taken later. A 403 is final: admission, or a missing permission."""
    return problem.temporary and problem.status != HTTPStatus.FORBIDDEN


def events_of(written: Iterable[RecordedEvent]) -> list[dict[str, Any]]:
    """Events, the newest first."""
    return [
        {
            "time": one.time,
            "about": f"{one.event.subject.namespace}/{one.event.subject.name}"
            if one.event.subject.namespace
            else one.event.subject.name,
            "kind": one.event.subject.kind,
            "reason": one.event.reason,
            "message": one.event.message,
            "warning": one.event.warning,
        }
        for one in reversed(list(written))
    ]
