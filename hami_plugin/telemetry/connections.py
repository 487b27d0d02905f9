"""Connections to our own ports: how many there may be, and how long one may take to ask for something.

Whoever reaches a port of a pod can open connections to it, and needs no account for that. Each costs a descriptor,
which the kubelet's socket needs too, and some 70 KiB.
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

from hami_plugin.log import logger

MOST = 64
"""Connections to the port of probes and metrics: the kubelet and Prometheus need a handful."""
HEADER_S = 5.0
"""How long the first request's header may take, and a TLS handshake."""
AT_ONCE = 16
"""So many are taken in one turn of the loop. Others wait in the kernel, and the kubelet's calls go on between."""
SAY_AGAIN_S = 60.0
PAUSE_S = 0.1
"""How long nobody is taken when the process has no descriptor left."""
ENOUGH = 65_536
"""Descriptors. Some systems allow a thousand million, and vendors' tools that close them one by one take minutes."""
KEPT_BACK = 48
"""Descriptors that are left to everything else, where there are few."""
IDLE, LATE, BUSY = "it was idle for longest", "it asked for nothing in time", "all others are busy"
WHYS = (IDLE, LATE, BUSY)
"""Why a connection is closed before its time; beside these the system's own words, when no descriptor is left."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logger(__name__)


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may. How many these are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard, ENOUGH)) if hard != resource.RLIM_INFINITY else max(soft, ENOUGH)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays as it is", limit=soft, why=str(error))
        return soft
    return wanted


def affordable(most: int) -> int:
    """How many of ``most`` connections the limit of open files leaves room for; always a few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(4, min(most, (limit - KEPT_BACK) // 4))


class _Connection(asyncio.Protocol):
    """One connection, between its transport and aiohttp's protocol.

    ``since`` is when it last became idle; ``asks``, how many requests of it are being answered.
    """

    def __init__(self, owner: Connections, since: float) -> None:
        self.since = since
        self.asks = 0
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.late: asyncio.TimerHandle | None = None
        self._owner = owner
        self._inner: asyncio.Protocol | None = None

    def serve(self, inner: asyncio.Protocol) -> _Connection:
        self._inner = inner
        return self

    def drop(self) -> None:
        """Close it now, whatever its state."""
        if self.transport:
            self.transport.abort()
        elif self.opening:
            self.opening.cancel()

    def in_time(self) -> None:
        """It has asked for something."""
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
    """Connections that were closed before their time, since the last line about them."""

    count: int = 0
    said: float = field(default=float("-inf"))


class Connections:
    """Takes connections from a socket, at most ``most`` at a time, and hands them to aiohttp's server.

    When there are as many, the one that has been idle for longest goes; one that waits for an answer stays. ``context``
    may be replaced: it is that of connections from then on. ``dropped`` counts those that are closed, with the reason.
    Give ``noticing`` to the application as its first middleware.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        most: int = MOST,
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
        """A connection is busy while one of its requests is answered."""
        one = self._of.get(request.transport) if request.transport else None
        if one is None:
            return await handler(request)
        one.asks += 1
        one.in_time()
        try:
            return await handler(request)
        finally:
            one.asks -= 1
            one.since = self._clock()

    def start(self, server: web.Server, listener: socket.socket) -> None:
        """Take connections for ``server`` from now on."""
        self._server = server
        self._listener = listener
        listener.setblocking(False)
        self._resume()

    def stop(self) -> None:
        """Take no more. Those that are open go on. Harmless when nothing was started."""
        listener, self._listener, self._server = self._listener, None, None
        if self._paused:
            self._paused.cancel()
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
        self._give_reserve()

    def close(self) -> None:
        """Take no more, and close those that are open."""
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
        # What is dropped is closed in the loop's next turn: until then both count.
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
            self._tell(BUSY)
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
        patience = self._header if self.context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: one.serve(server()), taken, ssl=self.context, ssl_handshake_timeout=patience
            )
        except Exception as error:  # noqa: BLE001  # a peer that has gone, or speaks no TLS: nobody is left to be told
            log.debug("connection not opened", why=str(error) or type(error).__name__)

    def _settled(self, one: _Connection, taken: socket.socket) -> None:
        one.opening = None
        if one.transport is None:
            self.ended(one)
            taken.close()

    def _drop_oldest(self) -> bool:
        """Close the connection that has been idle for longest; one that is closing already does for a moment."""
        idle = [one for one in self._open if not one.asks]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.since)
        self._open.pop(oldest)
        oldest.drop()
        self._tell(IDLE)
        return True

    def _too_late(self, one: _Connection) -> None:
        one.late = None
        one.drop()
        self._tell(LATE)

    def _out_of_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Others need descriptors more than we do. Whoever waits is let in by the reserve, and shown out."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._paused = loop.call_later(PAUSE_S, self._resume)
        self._give_reserve()
        with suppress(OSError):
            listener.accept()[0].close()
        self._keep_reserve()
        self._drop_oldest()
        self._tell(error.strerror or str(error))

    def _keep_reserve(self) -> None:
        if self._reserve < 0:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _tell(self, why: str) -> None:
        self._count(why)
        told, now = self._dropped.setdefault(why, _Dropped()), self._clock()
        told.count += 1
        if now - told.said >= SAY_AGAIN_S:
            log.warning("connections closed before their time", why=why, count=told.count, most=self._most)
            told.count, told.said = 0, now
