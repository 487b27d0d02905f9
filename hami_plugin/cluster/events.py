"""Kubernetes Events. A repeated Event increases a count and makes no new object."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from hami_plugin.cluster.requests import ApiCalls
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Subject

from .replies import Call

COMPONENT = "hami-plugin"
REMEMBERED = 256
MESSAGE_BYTES = 1024
NAME_CHARACTERS = 220  # 253 less a dot and 32 hexadecimal digits

Key = tuple[Subject, str, str, bool]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class EventLog:
    """Writes core/v1 Events in the name of a component, which runs on ``host``: a node, or a pod of its own."""

    def __init__(self, calls: ApiCalls, host: str, clock: Callable[[], str] = now, component: str = COMPONENT) -> None:
        self._calls = calls
        self._host = host
        self._component = component
        self._clock = clock
        self._written: OrderedDict[Key, tuple[str, int]] = OrderedDict()

    async def write(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        """The same fact about the same object counts up one Event, as long as it still exists there."""
        message = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
        key = (subject, reason, message, warning)
        known = self._written.pop(key, None)
        if known is not None:
            try:
                self._remember(key, await self._repeat(subject, *known))
            except ClusterError as error:
                if not error.not_found:
                    self._remember(key, known)
                    raise
            else:
                return
        self._remember(key, await self._create(subject, reason, message, warning=warning))

    async def _repeat(self, subject: Subject, name: str, count: int) -> tuple[str, int]:
        body = {"count": count + 1, "lastTimestamp": self._clock()}
        path = f"{_collection(subject)}/{quote(name, safe='')}"
        await self._calls.json(Call(verb="patch", kind="events", path=path, name=name, body=body))
        return name, count + 1

    async def _create(self, subject: Subject, reason: str, message: str, *, warning: bool) -> tuple[str, int]:
        name = f"{subject.name[:NAME_CHARACTERS].rstrip('.-')}.{uuid.uuid4().hex}"
        at = self._clock()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(subject)},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": subject.kind,
                "name": subject.name,
                **({"namespace": subject.namespace} if subject.namespace else {}),
                **({"uid": subject.uid} if subject.uid else {}),
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        about = f"{reason} for {subject.kind} {subject.name}"
        await self._calls.json(Call(verb="create", kind="events", path=_collection(subject), name=about, body=body))
        return name, 1

    def _remember(self, key: Key, written: tuple[str, int]) -> None:
        self._written[key] = written
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)


def _namespace(subject: Subject) -> str:
    return subject.namespace or "default"


def _collection(subject: Subject) -> str:
    return f"/api/v1/namespaces/{quote(_namespace(subject), safe='')}/events"
