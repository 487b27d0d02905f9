"""Limits of connections to our own ports: their number, and the time until their first request.

Whoever reaches a port of a pod can open connections to it, without any account. Each costs some 70 KiB and a
descriptor, which the kubelet's socket needs too.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from hami_plugin.process.log import logger

MAX_CONNECTIONS = 64
"""Of the port of probes and metrics. The kubelet and Prometheus need a handful."""
HEADER_S = 5.0
"""Timeout of the TLS handshake, and of the first request's header."""
AT_ONCE = 16
"""Connections accepted in one turn of the loop. Others wait in the kernel, so that the kubelet's calls go on."""
LOG_INTERVAL_S = 60.0
PAUSE_S = 0.1
"""How long to accept nothing when the process has no descriptor left."""
MAX_DESCRIPTORS = 65_536
"""Some systems allow a billion, and vendors' tools that close them one by one take minutes."""
RESERVED_DESCRIPTORS = 48
"""Left to everything else, where there are few."""
IDLE, LATE, BUSY = "it was idle for longest", "it asked for nothing in time", "all others are busy"
WHYS = (IDLE, LATE, BUSY)
"""Why a connection is closed early; besides these the system's message when no descriptor is left."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the limit of open files as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard, MAX_DESCRIPTORS)) if hard != resource.RLIM_INFINITY else max(soft, MAX_DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files cannot be raised", limit=soft, why=str(error))
        return soft
    return wanted


def affordable(most: int) -> int:
    """How many of ``most`` connections the limit of open files permits; always a few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(4, min(most, (limit - RESERVED_DESCRIPTORS) // 4))


class _Connection(asyncio.Protocol):
    """One connection, between its transport and aiohttp's protocol.

    ``since`` is when it last became idle; ``requests`` is how many of its requests are in progress.
    """

    def __init__(self, owner: Connections, since: float) -> None:
        self.since = since
        self.requests = 0
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.late: asyncio.TimerHandle | None = None
        self._owner = owner
        self._inner: asyncio.Protocol | None = None

    def serve(self, inner: asyncio.Protocol) -> _Connection:
        self._inner = inner
        return self

    def drop(self) -> None:
        """Close it now, in any state."""
        if self.transport:
            self.transport.abort()
        elif self.opening:
            self.opening.cancel()

    def in_time(self) -> None:
        """Its first request has arrived."""
        if self.late:
            self.late.cancel()
            self.late = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert self._inner
        self.transport = transport
        self._owner.made(self, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        assert self._inner
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        assert self._inner
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        assert self._inner
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        assert self._inner
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._inner
        self._owner.ended(self)
        self._inner.connection_lost(exc)


@dataclass(slots=True)
class _Dropped:
    """Connections that were closed early since the last log line about them."""

    count: int = 0
    logged_at: float = field(default=float("-inf"))


class Connections:
    """Accepts connections of a socket, at most ``most`` at a time, and passes them to aiohttp's server.

    At the limit, the connection that has been idle longest is closed; one with a request in progress stays. A new
    ``context`` holds for new connections. ``dropped`` counts connections closed early, with the reason. The application
    needs ``noticing`` as its first middleware.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        most: int = MAX_CONNECTIONS,
        header: float = HEADER_S,
        dropped: Callable[[str], None] = lambda _why: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context = context
        self._listener: socket.socket | None = None
        self._most = affordable(most)
        self._header = header
        self._count = dropped
        self._clock = clock
        self._open: dict[_Connection, None] = {}
        self._of: dict[asyncio.BaseTransport, _Connection] = {}
        self._dropped: dict[str, _Dropped] = {}
        self._server: web.Server | None = None
        self._reserve = -1
        self._paused: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @web.middleware
    async def noticing(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as busy while one of its requests is in progress."""
        one = self._of.get(request.transport) if request.transport else None
        if one is None:
            return await handler(request)
        one.requests += 1
        one.in_time()
        try:
            return await handler(request)
        finally:
            one.requests -= 1
            one.since = self._clock()

    def start(self, server: web.Server, listener: socket.socket) -> None:
        """Accept connections for ``server`` from now on."""
        self._server = server
        self._listener = listener
        listener.setblocking(False)
        self._resume()

    def stop(self) -> None:
        """Accept no more. Open connections stay. Harmless if nothing was started."""
        listener, self._listener, self._server = self._listener, None, None
        if self._paused:
            self._paused.cancel()
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
        self._give_reserve()

    def close(self) -> None:
        """Accept no more, and close open connections."""
        self.stop()
        for one in list(self._open):
            one.drop()

    def made(self, one: _Connection, transport: asyncio.Transport) -> None:
        """The connection is open: with TLS, after its handshake."""
        self._of[transport] = one

    def ended(self, one: _Connection) -> None:
        """The connection is gone."""
        one.in_time()
        self._open.pop(one, None)
        if one.transport:
            self._of.pop(one.transport, None)

    def _resume(self) -> None:
        self._paused = None
        if self._listener is not None:
            self._keep_reserve()
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    def _take(self, listener: socket.socket) -> None:
        # A dropped connection is closed in the loop's next turn; until then both count.
        for _ in range(min(AT_ONCE, self._most)):
            try:
                taken, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._out_of_descriptors(listener, error)
                return
            self._begin(taken)

    def _begin(self, taken: socket.socket) -> None:
        if len(self._open) >= self._most and not self._drop_oldest():
            taken.close()
            self._report(BUSY)
            return
        taken.setblocking(False)
        one = _Connection(self, self._clock())
        self._open[one] = None
        loop = asyncio.get_running_loop()
        one.late = loop.call_later(self._header, self._too_late, one)
        one.opening = loop.create_task(self._opened(one, taken, self._server))
        one.opening.add_done_callback(lambda _task: self._settled(one, taken))  # also if it never began

    async def _opened(self, one: _Connection, taken: socket.socket, server: web.Server | None) -> None:
        assert server
        handshake_timeout = self._header if self.context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: one.serve(server()), taken, ssl=self.context, ssl_handshake_timeout=handshake_timeout
            )
        except Exception as error:  # noqa: BLE001  # the peer has gone, or speaks no TLS: nobody is left to answer
            log.debug("connection not opened", why=str(error) or type(error).__name__)

    def _settled(self, one: _Connection, taken: socket.socket) -> None:
        one.opening = None
        if one.transport is None:
            self.ended(one)
            taken.close()

    def _drop_oldest(self) -> bool:
        """Close the connection that has been idle longest. Closing takes a moment."""
        idle = [one for one in self._open if not one.requests]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.since)
        self._open.pop(oldest)
        oldest.drop()
        self._report(IDLE)
        return True

    def _too_late(self, one: _Connection) -> None:
        one.late = None
        one.drop()
        self._report(LATE)

    def _out_of_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Pause, since others need descriptors more. The reserved one accepts and closes whoever waits."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._paused = loop.call_later(PAUSE_S, self._resume)
        self._give_reserve()
        with suppress(OSError):
            listener.accept()[0].close()
        self._keep_reserve()
        self._drop_oldest()
        self._report(error.strerror or str(error))

    def _keep_reserve(self) -> None:
        if self._reserve < 0:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _report(self, why: str) -> None:
        self._count(why)
        dropped, now = self._dropped.setdefault(why, _Dropped()), self._clock()
        dropped.count += 1
        if now - dropped.logged_at >= LOG_INTERVAL_S:
            log.warning("connections closed early", why=why, count=dropped.count, most=self._most)
            dropped.count, dropped.logged_at = 0, now
