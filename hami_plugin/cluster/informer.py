"""An informer: list and watch objects for ever, and list again after a gap."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, NoReturn, TypedDict, TypeVar

import msgspec

from hami_plugin.cluster.requests import (
    ApiCall,
    ApiCalls,
    ListPace,
    Shape,
    TooLongError,
    message_text,
    object_name,
    read,
)
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import Feed, Json, anonymous, misshapen
from hami_plugin.process.concurrency import Backoff, Pausing, cancel, run_in_slices
from hami_plugin.process.log import logger

MAX_LINE_BYTES = 16 * 2**20  # etcd holds 1.5 MiB an object; JSON may be several times longer than what etcd holds


async def lines(chunks: AsyncIterable[bytes], longest: int = MAX_LINE_BYTES) -> AsyncGenerator[bytes, None]:
    """Split at line feeds. A last piece without one is yielded too: only its parser can tell whether it is complete."""
    pending = bytearray()
    async for chunk in chunks:
        searched = len(pending)
        pending += chunk
        while (end := pending.find(b"\n", searched)) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            searched = 0
            if line:
                yield line
        if len(pending) > longest:
            raise ClusterError(
                f"watch: a line is longer than {longest} bytes",
                hint="it is retried; no object of the API server is that long",
            )
    if pending:
        yield bytes(pending)


T = TypeVar("T")

LOG_INTERVAL_S = 60.0  # between two log lines of the same failure
MAX_PAGES = 20_000
PAGE_TRIES = 5
"""So often one page is asked for, before the whole list is."""
MAX_SLACK = 8
"""How many times as long a list's page may take, once pages came too late."""
SILENT_WATCHES = 2
"""After so many watches without any event, the present state is listed."""

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWatch(Generic[T]):
    """What to list and watch, and the feed it goes to. ``view`` is applied at once, so that no raw object is kept.

    ``present``: the first list must be the present state, not the server's cache, which may be somewhat old.
    ``single``: at most one object, which a watch from the beginning delivers at once, so that it needs no list.
    ``shape`` is a type with the members that ``view`` reads: the others are passed over. ``shaped`` is the view of what
    was parsed as that type, where it takes less time.
    """

    kind: str
    path: str
    view: Callable[[Json], T]
    feed: Feed[T]
    selector: str = ""
    present: bool = False
    single: bool = False
    shape: type[Any] | None = None
    shaped: Callable[[Any], T] | None = None


_ListMeta = TypedDict("_ListMeta", {"resourceVersion": str, "continue": str}, total=False)


class _Page(TypedDict, Generic[T], total=False):
    """A page of a list."""

    metadata: _ListMeta
    items: list[T]


class _Event(TypedDict, Generic[T]):
    """A line of a watch."""

    type: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """Times in seconds. A watch lives for a random time between the bounds of ``watch``, so that nodes drift apart.

    An API server sends a bookmark about every ``bookmarks`` seconds on an idle watch. One that is
    silent for two and a half times as long is lost, whatever TCP says.
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
        """How long a watch may be silent."""
        return 2.5 * self.bookmarks


class Informer(Generic[T]):
    """Lists and watches one kind. It lists again after a gap, at most once in ``list_every`` seconds (twice after a
    pause).
    """

    def __init__(self, calls: ApiCalls, topic: ListWatch[T], timing: WatchTiming) -> None:
        self._calls = calls
        self._topic = topic
        self._timing = timing
        self._page_shape, self._event_shape = _shapes(topic.shape)
        self._shaped = topic.shaped or topic.view
        self._pace = ListPace(every=timing.list_every, burst=2)
        self._listed = topic.single
        # "0" accepts the server's cache, "" demands the present state, anything else is a lower bound.
        self._version = "" if topic.present else "0"
        self._healthy = False
        self._slack = 1
        self._silent = 0
        self._refreshing = False
        self._open: asyncio.Timeout | None = None
        self._logged, self._logged_at = "", 0.0

    def refresh(self) -> bool:
        """List the present state again, in place of the open watch. False if it is too early for that.

        Calls during the list share its result.
        """
        if self._open is not None and not self._refreshing and not self._pace.wait:
            self._forget()
            self._refreshing = True
            self._open.reschedule(asyncio.get_running_loop().time())
        return self._refreshing

    async def run(self) -> NoReturn:
        delays = self._timing.backoff.delays()
        while True:
            self._healthy, wait, listing = False, 0.0, not self._listed
            try:
                try:
                    if not self._listed:
                        await self._list()
                finally:
                    self._refreshing = False
                if await self._over():
                    delays = self._timing.backoff.delays() if self._healthy else delays
                    continue
            except ClusterError as error:
                wait = error.retry_after or 0.0
                self._lost(error, listing=listing)
            except Exception as error:
                # The boundary between a server's responses and this process.
                log.exception("unexpected error in an informer", kind=self._topic.kind)
                self._forget()
                self._lost(ClusterError(f"{self._topic.kind}: {type(error).__name__}: {error}"), listing=False)
            if self._healthy:
                delays = self._timing.backoff.delays()
            await asyncio.sleep(max(wait, next(delays)))

    async def _over(self) -> bool:
        """Watch until the watch ends or ``refresh`` is called: whether the next one may follow at once.

        After a watch that has lived its time, a pause would only hide what happens meanwhile.
        """
        try:
            async with asyncio.timeout(None) as self._open:
                return await self._watch()
        except TimeoutError:
            return True
        finally:
            self._open = None

    def _lost(self, error: ClusterError, *, listing: bool) -> None:
        """Handle a lost list or watch. A version that the server cannot serve, too old or from a lost future, needs a
        list.

        A list that was refused for the same reason is repeated without a version. Such a server is up, so the back-off
        starts again.
        """
        if error.status == HTTPStatus.GONE or "resource version" in error.message.lower():
            self._healthy = self._healthy or not listing
            self._listed = False
            self._version = "" if listing else self._version
        why, now = str(error), time.monotonic()
        if why != self._logged or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged, self._logged_at = why, now
            log.warning("watch interrupted", kind=self._topic.kind, why=why)

    def _forget(self) -> None:
        """The known objects and their version may be outdated: list the present state next."""
        self._listed, self._version, self._silent = False, "", 0

    async def _list(self) -> None:
        await self._pace.turn()
        query = self._query({"resourceVersion": self._version} if self._version else {})
        if self._version not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        found: list[T] = []
        coming = asyncio.create_task(self._repeated_page(query))
        try:
            for page in range(MAX_PAGES):
                items, version, token, shaped = await coming
                if token:
                    if token == query.get("continue") or page == MAX_PAGES - 1:
                        raise ClusterError(f"list {self._topic.kind}: the list has no last page", hint="it is retried")
                    query = self._query({"continue": token})
                    coming = asyncio.create_task(self._repeated_page(query))  # while this one is gone through
                found += await run_in_slices(self._views(items, shaped=shaped))
                del items  # a page may be many times as large as what is kept of it
                if not token:
                    break
        finally:
            await cancel(coming)
        self._listed, self._version, self._silent = True, version, 0
        log.info("listed", kind=self._topic.kind, count=len(found), version=self._version)
        await self._replace(found)

    async def _repeated_page(self, query: Mapping[str, str]) -> tuple[Sequence[Any], str, str, bool]:
        """``_page``. What fails behind the first one is asked for again: a list of many pages would never end where
        each failure began it anew.
        """
        tries = PAGE_TRIES if "continue" in query else 1
        for left, delay in zip(range(tries - 1, -1, -1), self._timing.backoff.delays(), strict=False):
            try:
                return await self._page(query)
            except ClusterError as error:
                if not left or not error.temporary or error.conflict:
                    raise
                log.info("a page of a list is asked for again", kind=self._topic.kind, why=str(error))
                await asyncio.sleep(max(delay, error.retry_after or 0.0))
        raise AssertionError("the last try returns or raises")

    async def _page(self, query: Mapping[str, str]) -> tuple[Sequence[Any], str, str, bool]:
        """The objects of one page, the list's version, the token of the next page, and whether they are shaped.

        Pages become smaller where objects are too large for a page of the usual length.
        """
        limit = self._timing.page
        while True:
            try:
                call = self._call("list", {**query, "limit": str(limit)})
                reading = await self._calls.page(call, self._page_shape, slack=self._slack)
                self._slack = 1
                break
            except TooLongError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
            except ClusterError as error:
                if not error.status:
                    self._slack = min(2 * self._slack, MAX_SLACK)
                raise
        page = reading.value
        meta, items = page.get("metadata"), page.get("items")
        if not isinstance(meta, dict) or not isinstance(items, list | None):
            raise ClusterError(
                f"list {self._topic.kind}: the response is not a list of objects",
                hint="it is retried; a proxy in front of the API server may replace responses",
            )
        return items or (), _text(meta.get("resourceVersion")), _text(meta.get("continue")), reading.shaped

    async def _replace(self, found: Sequence[T]) -> None:
        """Deliver a list. If the feed fails, deliver only the objects that it accepts one by one."""
        try:
            await self._deliver_list(found)
        except Exception:
            log.exception("unexpected error while delivering a list", kind=self._topic.kind)
            await self._deliver_list([view for view in found if self._take(self._topic.feed.update, view)])

    async def _deliver_list(self, found: Sequence[T]) -> None:
        feed = self._topic.feed
        if feed.replacing:
            await run_in_slices(feed.replacing(found))
        else:
            feed.replace(found)

    def _take(self, take: Callable[[T], None], view: T) -> bool:
        """Deliver one object: whether the feed accepted it."""
        try:
            take(view)
        except Exception as error:  # noqa: BLE001  # one object must not affect the others
            name = getattr(view, "key", "") or getattr(view, "name", "")
            self._calls.unreadable_objects.note(self._topic.kind, name, f"{type(error).__name__}: {error}")
            return False
        return True

    def _views(self, items: Sequence[Any], *, shaped: bool) -> Pausing[list[T]]:
        """The views of objects that have a name."""
        found: list[T] = []
        for item in items:
            if (view := self._view(item, shaped=shaped)) is not None:
                found.append(view)
            yield
        return found

    def _view(self, item: Any, *, shaped: bool) -> T | None:
        """The view of an object; None for one without a name."""
        nameless = anonymous(item)
        if why := nameless or ("" if shaped else misshapen(item)):
            self._calls.unreadable_objects.note(self._topic.kind, object_name(item), why)
        if nameless:
            return None
        return self._shaped(item) if shaped else self._topic.view(item)

    async def _watch(self) -> bool:
        """Follow until the server ends the watch: whether it lived as long as we asked for."""
        life = random.uniform(*self._timing.watch)  # noqa: S311  # spreads load, keeps no secret
        query = {
            **self._selected,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(math.ceil(life)),
            "resourceVersion": self._version,
        }
        began, received_any = time.monotonic(), False
        silence = min(math.ceil(life) + self._timing.grace, self._timing.silence)
        try:
            call = self._call("watch", query)
            async with (
                self._calls.stream(call, silence=silence) as chunks,
                aclosing(lines(chunks)) as received,
            ):
                async for line in received:
                    await self._handle(line)
                    received_any = self._healthy = True
        finally:
            lived = time.monotonic() - began
            self._healthy = self._healthy or lived >= self._timing.settled
            self._silent = 0 if received_any else self._silent + (lived >= min(life, silence))
            if self._silent and (lived >= life or self._silent >= SILENT_WATCHES):
                # Not even a bookmark: our version may be from a future that the server has lost.
                self._forget()
        return lived >= life

    async def _handle(self, line: bytes) -> None:
        kind, item, shaped = await self._event(line)
        feed = self._topic.feed
        match kind:
            case "ADDED" | "MODIFIED":
                self._deliver(feed.update, item, shaped=shaped)
            case "DELETED":
                self._deliver(feed.delete, item, shaped=shaped)
            case "BOOKMARK":
                pass
            case "ERROR":
                # The position of the stream is unknown from here on.
                self._listed = False
                code, message = (item.get("code"), item.get("message")) if isinstance(item, dict) else (0, "")
                status = code if isinstance(code, int) else 0
                raise ClusterError(
                    f"watch {self._topic.kind}: {message_text(message) or 'ended by an error'}", status=status
                )
            case _:
                log.debug("unknown watch event", kind=self._topic.kind, type=kind)
        meta = item.get("metadata") if isinstance(item, dict) else None
        self._version = (_text(meta.get("resourceVersion")) if isinstance(meta, dict) else "") or self._version

    def _deliver(self, take: Callable[[T], None], item: Any, *, shaped: bool) -> None:
        if (view := self._view(item, shaped=shaped)) is not None:
            self._take(take, view)

    async def _event(self, line: bytes) -> tuple[str, Any, bool]:
        """The kind of a line, its object, and whether that is shaped. A bookmark and an error never are."""
        try:
            reading = await read(line, self._event_shape)
            kind, item = reading.value["type"], reading.value["object"]
        except (ValueError, TypeError, KeyError) as error:
            raise ClusterError(
                f"watch: a line is not an event ({len(line)} bytes, starting with {line[:40]!r})", hint="it is retried"
            ) from error
        self._calls.report_truncated(self._topic.kind, reading)
        return str(kind)[:40], item, reading.shaped

    def _query(self, start: Mapping[str, str]) -> dict[str, str]:
        return {**self._selected, "limit": str(self._timing.page), **start}

    @property
    def _selected(self) -> dict[str, str]:
        return {"fieldSelector": self._topic.selector} if self._topic.selector else {}

    def _call(self, verb: str, query: Mapping[str, str]) -> ApiCall:
        return ApiCall(verb=verb, kind=self._topic.kind, path=self._topic.path, name=self._topic.selector, query=query)


def _shapes(of: type[Any] | None) -> tuple[Shape | None, Shape | None]:
    """How a page of a list of such objects is parsed, and a line of a watch."""
    if of is None:
        return None, None
    # mypy takes no type that is a value
    return tuple(msgspec.json.Decoder(generic[of]).decode for generic in (_Page, _Event))  # type: ignore[return-value]


def _text(value: object) -> str:
    """A version or a token; empty if it is not text."""
    return value if isinstance(value, str) else ""
