"""The port on which kube-scheduler and the API server ask, with TLS whose certificate can be replaced."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from hami_plugin.scheduler.extender.metrics import Metrics
from hami_plugin.scheduler.extender.request_handler import RequestHandler, Route, refusal
from hami_plugin.telemetry.connections import Connections
from hami_plugin.telemetry.http import Probes, cannot_listen, listening

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST = 1024
"""Connections: each call that waits for an answer has one of its own, and idle ones go first."""
_RECEIVED = 1 << 16
"""Bytes of one connection that wait in the kernel, about. By default they are megabytes, of which the event loop takes
256 KiB at once: from a hundred senders 25 MiB, before any request could count them.
"""
_KEPT_S = 120.0
"""How long an idle connection is kept: longer than Go's clients do (90 s), so that none sends into a closing one."""
_LINGER_S = 2.0
"""For how long the rest of a refused request is taken and thrown away, so that its sender reads why."""


class Server:
    """Calls by POST, and the probes by GET, on one port."""

    def __init__(self, *, host: str, port: int, kinds: Sequence[Route], probes: Probes, metrics: Metrics) -> None:
        self._address = (host, port)
        self._connections = Connections(most=_MOST, dropped=metrics.connection_dropped)
        self._app = web.Application(middlewares=[self._connections.noticing, _in_json])
        for kind in kinds:
            self._app.router.add_post(kind.path, RequestHandler(kind, metrics).__call__)
        probes.add_to(self._app)
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; the wanted one while there is none."""
        return int(self._socket.getsockname()[1]) if self._socket else self._address[1]

    async def start(self, context: ssl.SSLContext | None, *, stop_s: float) -> None:
        """Listen, with TLS if there is a context. ``HamiError`` when the address is not to be had.

        ``stop_s`` is how many seconds the calls that run have, once ``stop`` is called.
        """
        runner = web.AppRunner(
            self._app,
            access_log=None,
            shutdown_timeout=stop_s,
            keepalive_timeout=_KEPT_S,
            lingering_time=_LINGER_S,
            auto_decompress=False,  # neither kube-scheduler nor the API server packs, and a few KiB may unpack to GiB
        )
        try:
            self._socket = listening(*self._address)
            # Each connection has it from the listener, and none hands more to the event loop at once.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
        except (OSError, UnicodeError) as error:
            what, keys = "the extender and the webhook", ("listenHost", "listenPort")
            raise cannot_listen(*self._address, error, what=what, keys=keys) from error
        await runner.setup()
        assert runner.server
        self._runner = runner
        await self.present(context)
        self._connections.start(runner.server, self._socket)

    async def present(self, context: ssl.SSLContext | None) -> None:
        """Use this context for connections from now on. Those that are open go on, and none is refused meanwhile."""
        self._connections.context = context

    async def stop(self) -> None:
        """Take no more connections, let the calls that run finish, and close. Harmless when nothing was started."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        self._connections.stop()
        if listener is not None:
            listener.close()
        if runner is not None:
            await runner.cleanup()
        self._connections.close()


@web.middleware
async def _in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the library itself refuses, as a path or a method that is not there, in the form of all other refusals."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        why = f"{request.path} takes {allowed}, not {request.method}"
        return refusal(error.status, why, headers={"Allow": allowed})
    except web.HTTPNotFound as error:
        paths = sorted({route.resource.canonical for route in request.app.router.routes() if route.resource})
        return refusal(error.status, f"nothing is at this path; there are {', '.join(paths)}")
    except web.HTTPException as error:
        return refusal(error.status, error.reason)
