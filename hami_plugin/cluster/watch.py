"""Follow objects for ever: list, watch, and start over after a gap."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, NoReturn, TypeVar

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.model.feeds import Feed
from hami_plugin.model.views import Json

from .calls import ApiCalls
from .lines import lines
from .pacing import Pace
from .replies import Call

T = TypeVar("T")

SAY_AGAIN = 60.0  # seconds between two log lines of the same failure

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(Generic[T]):
    """What to follow, and where it goes. ``view`` is applied at once, so that no raw object is kept.

    ``present``: the first list must be the present state, not what the server has at hand, which may be somewhat old.
    """

    kind: str
    path: str
    view: Callable[[Json], T]
    feed: Feed[T]
    selector: str = ""
    present: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Times in seconds. A watch lives for a random time between the bounds of ``watch``, so that nodes drift apart."""

    deadline: float = 5.0
    watch: tuple[float, float] = (300.0, 600.0)
    grace: float = 15.0
    settled: float = 1.0
    list_every: float = 10.0
    page: int = 500
    # The cap is also how late we may notice that the server is back.
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, cap=20.0, jitter=0.5))


class Follower(Generic[T]):
    """One topic. Gaps are closed by a list, at most one in ``list_every`` seconds (two at once after a quiet time)."""

    def __init__(self, calls: ApiCalls, topic: Topic[T], rhythm: Rhythm) -> None:
        self._calls = calls
        self._topic = topic
        self._rhythm = rhythm
        self._pace = Pace(every=rhythm.list_every, burst=2)
        self._listed = False
        # "0" accepts what the server has at hand, "" demands the present state, anything else is a lower bound.
        self._version = "" if topic.present else "0"
        self._healthy = False
        self._said, self._said_at = "", 0.0

    async def run(self) -> NoReturn:
        delays = self._rhythm.backoff.delays()
        while True:
            self._healthy, wait, listing = False, 0.0, not self._listed
            try:
                if not self._listed:
                    await self._list()
                await self._watch()
            except ClusterError as error:
                wait = error.retry_after or 0.0
                self._lost(error, listing=listing)
            if self._healthy:
                delays = self._rhythm.backoff.delays()
            await asyncio.sleep(max(wait, next(delays)))

    def _lost(self, error: ClusterError, *, listing: bool) -> None:
        """A version that the server cannot serve, too old or from a lost future, asks for a list.

        A list that was refused for the same reason is repeated without any condition. A server that says so is there:
        what an outage has taught about waiting no longer holds.
        """
        if error.status == HTTPStatus.GONE or "resource version" in error.message.lower():
            self._healthy = self._healthy or not listing
            self._listed = False
            self._version = "" if listing else self._version
        why, now = str(error), time.monotonic()
        if why != self._said or now - self._said_at >= SAY_AGAIN:
            self._said, self._said_at = why, now
            log.warning("watch interrupted", kind=self._topic.kind, why=why)

    async def _list(self) -> None:
        await self._pace.turn()
        query = self._query({"resourceVersion": self._version} if self._version else {})
        if self._version not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        found: list[T] = []
        while True:
            page = await self._calls.json(self._call("list", query))
            found.extend(self._topic.view(item) for item in page.get("items") or ())
            meta = page.get("metadata") or {}
            if not (token := meta.get("continue")):
                break
            query = self._query({"continue": str(token)})
        self._listed, self._version = True, str(meta.get("resourceVersion", ""))
        log.info("listed", kind=self._topic.kind, count=len(found), version=self._version)
        self._topic.feed.replace(found)

    async def _watch(self) -> None:
        life = random.uniform(*self._rhythm.watch)  # noqa: S311  # spreads load, keeps no secret
        query = {
            **self._selected,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(math.ceil(life)),
            "resourceVersion": self._version,
        }
        began, heard = time.monotonic(), False
        try:
            call = self._call("watch", query)
            async with (
                self._calls.stream(call, silence=math.ceil(life) + self._rhythm.grace) as chunks,
                aclosing(lines(chunks)) as received,
            ):
                async for line in received:
                    self._take(line)
                    heard = self._healthy = True
        finally:
            lived = time.monotonic() - began
            self._healthy = self._healthy or lived >= self._rhythm.settled
        if not heard and lived >= life:
            # Not even a bookmark in a whole life: our version may come from a future that the server has lost.
            self._listed, self._version = False, ""

    def _take(self, line: bytes) -> None:
        kind, item = _event(line)
        match kind:
            case "ADDED" | "MODIFIED":
                self._topic.feed.update(self._topic.view(item))
            case "DELETED":
                self._topic.feed.delete(self._topic.view(item))
            case "BOOKMARK":
                pass
            case "ERROR":
                # Where the stream stands is unknown from here on.
                self._listed = False
                status = int(item.get("code") or 0)
                raise ClusterError(
                    f"watch {self._topic.kind}: {item.get('message', 'ended by an error')}", status=status
                )
            case _:
                log.debug("unknown watch event", kind=self._topic.kind, type=kind)
        self._version = str((item.get("metadata") or {}).get("resourceVersion") or self._version)

    def _query(self, start: Mapping[str, str]) -> dict[str, str]:
        return {**self._selected, "limit": str(self._rhythm.page), **start}

    @property
    def _selected(self) -> dict[str, str]:
        return {"fieldSelector": self._topic.selector} if self._topic.selector else {}

    def _call(self, verb: str, query: Mapping[str, str]) -> Call:
        return Call(verb=verb, kind=self._topic.kind, path=self._topic.path, name=self._topic.selector, query=query)


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
        item["metadata"] = item.get("metadata") or {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError(
            f"watch: a line is not an event ({len(line)} bytes, it begins {line[:40]!r})", hint="it is tried again"
        ) from error
    return str(kind), item
