"""Follow objects for ever: list, watch, and start over after a gap."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, NoReturn, TypeVar

from hami_plugin.aio import Backoff
from hami_plugin.cluster.replies import Call, named, read, words
from hami_plugin.cluster.requests import ApiCalls, ListPace, TooLongError
from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.model.views import Feed, Json, anonymous, misshapen

LONGEST = 16 * 2**20  # etcd holds 1.5 MiB an object; JSON may be several times longer than what etcd holds


async def lines(chunks: AsyncIterable[bytes], longest: int = LONGEST) -> AsyncGenerator[bytes, None]:
    """Split at line feeds. A last piece without one is yielded too: whether it is whole, only its parser can tell."""
    pending = bytearray()
    async for chunk in chunks:
        looked = len(pending)
        pending += chunk
        while (end := pending.find(b"\n", looked)) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            looked = 0
            if line:
                yield line
        if len(pending) > longest:
            raise ClusterError(
                f"watch: a line of more than {longest} bytes without an end",
                hint="it is tried again; no object of the API server is that long",
            )
    if pending:
        yield bytes(pending)


T = TypeVar("T")

SAY_AGAIN = 60.0  # seconds between two log lines of the same failure
MAX_PAGES = 20_000
SILENT_WATCHES = 2
"""After so many watches that nothing was heard on, the present state is read."""

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWatch(Generic[T]):
    """What to follow, and where it goes. ``view`` is applied at once, so that no raw object is kept.

    ``present``: the first list must be the present state, not what the server has at hand, which may be somewhat old.
    ``single``: at most one object, which a watch from the beginning shows at once, so that it needs no list before.
    """

    kind: str
    path: str
    view: Callable[[Json], T]
    feed: Feed[T]
    selector: str = ""
    present: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """Times in seconds. A watch lives for a random time between the bounds of ``watch``, so that nodes drift apart.

    An API server sends a bookmark about every ``bookmarks`` seconds on a watch that has nothing else to say. One that
    is silent for two and a half times as long is lost, whatever TCP says.
    """

    deadline: float = 5.0
    watch: tuple[float, float] = (300.0, 600.0)
    grace: float = 15.0
    bookmarks: float = 60.0
    settled: float = 1.0
    list_every: float = 10.0
    page: int = 500
    # The cap is also how late we may notice that the server is back.
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, cap=20.0, jitter=0.5))

    @property
    def silence(self) -> float:
        """How long a watch may say nothing."""
        return 2.5 * self.bookmarks


class Informer(Generic[T]):
    """One topic. Gaps are closed by a list, at most one in ``list_every`` seconds (two at once after a quiet time)."""

    def __init__(self, calls: ApiCalls, topic: ListWatch[T], rhythm: WatchTiming) -> None:
        self._calls = calls
        self._topic = topic
        self._rhythm = rhythm
        self._pace = ListPace(every=rhythm.list_every, burst=2)
        self._listed = topic.single
        # "0" accepts what the server has at hand, "" demands the present state, anything else is a lower bound.
        self._version = "" if topic.present else "0"
        self._healthy = False
        self._silent = 0
        self._refreshing = False
        self._open: asyncio.Timeout | None = None
        self._said, self._said_at = "", 0.0

    def refresh(self) -> bool:
        """Read the present state again, in place of the watch that is open. False if it is not yet time for that.

        Who asks while it is being read waits for the same answer.
        """
        if self._open is not None and not self._refreshing and not self._pace.wait:
            self._forget()
            self._refreshing = True
            self._open.reschedule(asyncio.get_running_loop().time())
        return self._refreshing

    async def run(self) -> NoReturn:
        delays = self._rhythm.backoff.delays()
        while True:
            self._healthy, wait, listing = False, 0.0, not self._listed
            try:
                try:
                    if not self._listed:
                        await self._list()
                finally:
                    self._refreshing = False
                if await self._refreshed():
                    continue
            except ClusterError as error:
                wait = error.retry_after or 0.0
                self._lost(error, listing=listing)
            except Exception as error:
                # The line between what a server answers and this process.
                log.exception("mistake while following", kind=self._topic.kind)
                self._forget()
                self._lost(ClusterError(f"{self._topic.kind}: {type(error).__name__}: {error}"), listing=False)
            if self._healthy:
                delays = self._rhythm.backoff.delays()
            await asyncio.sleep(max(wait, next(delays)))

    async def _refreshed(self) -> bool:
        """Watch until the watch ends, or somebody asks for the present state: whether that was it."""
        try:
            async with asyncio.timeout(None) as self._open:
                await self._watch()
        except TimeoutError:
            return True
        finally:
            self._open = None
        return False

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

    def _forget(self) -> None:
        """What is known may be old, and the version it was read at is no help: the next list is the present state."""
        self._listed, self._version, self._silent = False, "", 0

    async def _list(self) -> None:
        await self._pace.turn()
        query = self._query({"resourceVersion": self._version} if self._version else {})
        if self._version not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        found: list[T] = []
        for page in range(MAX_PAGES):
            items, version, token = await self._page(query)
            found.extend(view for item in items if (view := self._view(item)) is not None)
            if not token:
                break
            if token == query.get("continue") or page == MAX_PAGES - 1:
                raise ClusterError(
                    f"list {self._topic.kind}: the pages of the list have no end", hint="it is tried again"
                )
            query = self._query({"continue": token})
        self._listed, self._version, self._silent = True, version, 0
        log.info("listed", kind=self._topic.kind, count=len(found), version=self._version)
        self._replace(found)

    async def _page(self, query: Mapping[str, str]) -> tuple[Sequence[Any], str, str]:
        """The objects of one page, the list's version, and the way to the next page.

        Objects may be so large that no page of the usual length can be read.
        """
        limit = self._rhythm.page
        while True:
            try:
                page = await self._calls.json(self._call("list", {**query, "limit": str(limit)}))
                break
            except TooLongError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
        meta, items = page.get("metadata"), page.get("items")
        if not isinstance(meta, dict) or not isinstance(items, list | None):
            raise ClusterError(
                f"list {self._topic.kind}: the answer is no list of objects",
                hint="it is tried again; a proxy between us and the API server may replace answers",
            )
        return items or (), _word(meta.get("resourceVersion")), _word(meta.get("continue"))

    def _replace(self, found: Sequence[T]) -> None:
        """Deliver a list. If somebody cannot take it, it goes without those that he cannot take one by one."""
        try:
            self._topic.feed.replace(found)
        except Exception:
            log.exception("mistake while taking in a list", kind=self._topic.kind)
            self._topic.feed.replace([view for view in found if self._take(self._topic.feed.update, view)])

    def _take(self, take: Callable[[T], None], view: T) -> bool:
        """Deliver one object. Whether it was taken."""
        try:
            take(view)
        except Exception as error:  # noqa: BLE001  # the line between one object and all others
            name = getattr(view, "key", "") or getattr(view, "name", "")
            self._calls.oddities.note(self._topic.kind, name, f"{type(error).__name__}: {error}")
            return False
        return True

    def _view(self, item: Any) -> T | None:
        """What is needed of an object; None for one without a name."""
        why = anonymous(item)
        if why or (why := misshapen(item)):
            self._calls.oddities.note(self._topic.kind, named(item), why)
        return None if anonymous(item) else self._topic.view(item)

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
        silence = min(math.ceil(life) + self._rhythm.grace, self._rhythm.silence)
        try:
            call = self._call("watch", query)
            async with (
                self._calls.stream(call, silence=silence) as chunks,
                aclosing(lines(chunks)) as received,
            ):
                async for line in received:
                    await self._hear(line)
                    heard = self._healthy = True
        finally:
            lived = time.monotonic() - began
            self._healthy = self._healthy or lived >= self._rhythm.settled
            self._silent = 0 if heard else self._silent + (lived >= min(life, silence))
            if self._silent and (lived >= life or self._silent >= SILENT_WATCHES):
                # Not even a bookmark: our version may come from a future that the server has lost.
                self._forget()

    async def _hear(self, line: bytes) -> None:
        kind, item = await self._event(line)
        feed = self._topic.feed
        match kind:
            case "ADDED" | "MODIFIED":
                self._deliver(feed.update, item)
            case "DELETED":
                self._deliver(feed.delete, item)
            case "BOOKMARK":
                pass
            case "ERROR":
                # Where the stream stands is unknown from here on.
                self._listed = False
                code, said = (item.get("code"), item.get("message")) if isinstance(item, dict) else (0, "")
                status = code if isinstance(code, int) else 0
                raise ClusterError(f"watch {self._topic.kind}: {words(said) or 'ended by an error'}", status=status)
            case _:
                log.debug("unknown watch event", kind=self._topic.kind, type=kind)
        meta = item.get("metadata") if isinstance(item, dict) else None
        self._version = (_word(meta.get("resourceVersion")) if isinstance(meta, dict) else "") or self._version

    def _deliver(self, take: Callable[[T], None], item: Any) -> None:
        if (view := self._view(item)) is not None:
            self._take(take, view)

    async def _event(self, line: bytes) -> tuple[str, Any]:
        try:
            reading = await read(line)
            kind, item = reading.value["type"], reading.value["object"]
        except (ValueError, TypeError, KeyError) as error:
            raise ClusterError(
                f"watch: a line is not an event ({len(line)} bytes, it begins {line[:40]!r})", hint="it is tried again"
            ) from error
        self._calls.cut(self._topic.kind, reading)
        return str(kind)[:40], item

    def _query(self, start: Mapping[str, str]) -> dict[str, str]:
        return {**self._selected, "limit": str(self._rhythm.page), **start}

    @property
    def _selected(self) -> dict[str, str]:
        return {"fieldSelector": self._topic.selector} if self._topic.selector else {}

    def _call(self, verb: str, query: Mapping[str, str]) -> Call:
        return Call(verb=verb, kind=self._topic.kind, path=self._topic.path, name=self._topic.selector, query=query)


def _word(value: object) -> str:
    """A version or a token; empty for anything else."""
    return value if isinstance(value, str) else ""
