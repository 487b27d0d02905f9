"""Kubernetes Events: reasons where people look for them. Bounded, without repeats, and never waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.node.ports import Subject

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One Event to be written."""

    subject: Subject
    reason: str
    message: str
    warning: bool


class Recipient(Protocol):
    """Who takes Events. ``ClusterError`` when it does not."""

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None: ...


class EventRecorder:
    """Queues Events and writes them one by one. The same text about the same object is told once in a while."""

    MOST_WAITING = 256
    MOST_TOLD = 1024
    REPEAT_AFTER_S = 600.0
    MOST_PODS = 4
    MOST_TRIES = 12

    def __init__(
        self,
        cluster: Recipient,
        node_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
    ) -> None:
        self._cluster = cluster
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._node = Subject(kind="Node", name=node_name, uid=node_name)
        self._clock = clock
        self._queue: asyncio.Queue[Event] = asyncio.Queue(self.MOST_WAITING)
        self._told: dict[tuple[Subject, str, str], float] = {}
        self._full = False

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """An Event about this node."""
        self._put(Event(subject=self._node, reason=reason, message=message, warning=warning))

    def refused(self, pods: Sequence[PodView], reason: str, message: str) -> None:
        """A refusal, told to every pod that it is about; to the node when it is about none."""
        if not pods:
            self.node(reason, message)
        for pod in pods[: self.MOST_PODS]:
            self.pod(pod, reason, message, warning=True)

    def pod(self, pod: PodView, reason: str, message: str, *, warning: bool) -> None:
        """An Event about a pod."""
        subject = Subject(kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid)
        self._put(Event(subject=subject, reason=reason, message=message, warning=warning))

    async def run(self) -> None:
        """Write what is queued, for ever. An Event that the API server will not take is dropped, and logged."""
        while True:
            event = await self._queue.get()
            await self._write(event)

    async def _write(self, event: Event) -> None:
        """Try for some minutes: an API server that is away comes back, and the reason is still worth reading."""
        for _attempt, delay in zip(range(self.MOST_TRIES), self._backoff.delays(), strict=False):
            try:
                return await self._cluster.create_event(
                    event.subject, reason=event.reason, message=event.message, warning=event.warning
                )
            except ClusterError as error:
                problem = error
            if not problem.temporary:
                break
            await asyncio.sleep(max(delay, problem.retry_after or 0.0))
        log.warning("event not written", reason=event.reason, about=event.subject.name, problem=problem.message)
        return None

    def _put(self, event: Event) -> None:
        now = self._clock()
        key = (event.subject, event.reason, event.message)
        if now - self._told.get(key, float("-inf")) < self.REPEAT_AFTER_S:
            return
        if len(self._told) >= self.MOST_TOLD:  # the older half goes; at worst something is told again too early
            self._told = dict(list(self._told.items())[self.MOST_TOLD // 2 :])
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            if not self._full:
                log.warning("events dropped: too many wait", reason=event.reason, about=event.subject.name)
            self._full = True
            return
        self._full = False
        self._told.pop(key, None)
        self._told[key] = now
