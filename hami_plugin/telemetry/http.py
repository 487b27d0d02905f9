"""A small HTTP server for probes, metrics and the effective configuration."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami_plugin.errors import HamiError
from hami_plugin.telemetry.connections import Connections

_INDEX = """hami-plugin

/healthz       whether the process is alive
/readyz        {purpose}
/metrics       for Prometheus
/debug/config  the effective configuration, from this host or pod only{more}
"""
_PAGES = {
    "usage": "/debug/usage   devices, their containers and what they use, from this host or pod only",
    "partitions": "/debug/partitions  what cards are cut into, from this host or pod only",
    "faults": "/debug/faults  devices with their last fault and whom it hit, from this host or pod only",
    "status": "/status.json   all of the state; a browser gets it here as a page, unless statusPage says otherwise",
    "claims": "/debug/claims  what is prepared for ResourceClaims, from this host or pod only",
}
FORGET_HEADER, RESIZE_HEADER = "Hami-Plugin-Forget", "Hami-Plugin-Resize"
"""Of a request that changes something: no page in a browser can send it to another site unasked."""
MAX_RESIZE_BYTES = 4096
_CLAIM_UID = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z]{0,62}")
_END = b"# EOF\n"
"""Of metrics in OpenMetrics' format."""
NODE_PURPOSE = "whether the devices are offered to the kubelet"
_STOP_S = 2.0
_SHUTDOWN_TIMEOUT_S = _STOP_S / 4
"""Timeout of requests while the server stops; aiohttp waits twice as long."""


async def nothing() -> None:
    """Nothing to refresh before a scrape."""


async def no_metrics() -> bytes:
    """None beside those of the registry."""
    return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The pages about a process. They show what the callables return at the time of the request.

    ``alive`` lists problems that only a restart solves; a broken device or an absent kubelet is none of them.
    ``ready`` maps each component to its problem, empty if there is none; ``purpose`` says what readiness means.
    ``refresh`` is awaited before each scrape. ``more_metrics`` are lines that both formats may have, of
    metrics that are too many for a registry. ``details`` are shown beside readiness, and do not decide it.
    ``documents`` are what commands of this host or pod read, by their names.
    """

    registry: CollectorRegistry
    alive: Callable[[], Sequence[str]]
    ready: Callable[[], Mapping[str, str]]
    configuration: Callable[[], Mapping[str, object]]
    refresh: Callable[[], Awaitable[None]] = nothing
    more_metrics: Callable[[], Awaitable[bytes]] = no_metrics
    purpose: str = NODE_PURPOSE
    documents: Mapping[str, Callable[[], Mapping[str, object]]] = field(default_factory=dict)
    details: Callable[[], Mapping[str, object]] = dict
    status: Callable[[], Mapping[str, Any]] | None = None
    status_readers: Callable[[], str] = lambda: "loopback"
    forget_claim: Callable[[str], Awaitable[Mapping[str, object]]] | None = None
    resize: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]] | None = None

    def add_to(self, app: web.Application) -> None:
        """Serve the pages in ``app``."""
        app.router.add_get("/", self._index)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/config", partial(document, "configuration", self.configuration))
        for name, make in self.documents.items():
            app.router.add_get(f"/debug/{name}", partial(document, name, make))
        if self.status:
            app.router.add_get("/status.json", self._status)
        if self.forget_claim:
            app.router.add_delete("/debug/claims/{uid}", self._forget_claim)
        if self.resize:
            app.router.add_post("/debug/resize", self._resize)

    async def _index(self, request: web.Request) -> web.Response:
        """The status page for a browser that may see it, else what there is, as text."""
        if self.status and "text/html" in request.headers.get("Accept", "") and self._may_look(request):
            from hami_plugin.telemetry.status_page import page  # noqa: PLC0415  # as below

            return web.Response(text=page(self.status()), content_type="text/html", headers=_page_headers())
        there = {*self.documents, *(("status",) if self.status else ())}
        more = "".join(f"\n{line}" for name, line in _PAGES.items() if name in there)
        return web.Response(text=_INDEX.format(purpose=self.purpose, more=more))

    async def _healthz(self, _request: web.Request) -> web.Response:
        problems = list(self.alive())
        return _json({"alive": not problems, "problems": problems}, status=503 if problems else 200)

    async def _readyz(self, _request: web.Request) -> web.Response:
        components = dict(self.ready())
        reasons = [f"{component}: {problem}" for component, problem in components.items() if problem]
        answer = {"ready": not reasons, "reasons": reasons, "components": components, **self.details()}
        return _json(answer, status=503 if reasons else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            encode, kind = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # the library trips over versions that are no numbers
            encode, kind = choose_encoder("")
        await self.refresh()
        body = encode(self.registry)
        if more := await self.more_metrics():
            end = _END if body.endswith(_END) else b""
            body = body.removesuffix(_END) + more + end
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _status(self, request: web.Request) -> web.Response:
        assert self.status
        if not self._may_look(request):
            return _forbidden("the status page", "; statusPage: any opens it to others")
        from hami_plugin.telemetry.status_page import news  # noqa: PLC0415  # as below

        return _json(news(self.status()))

    def _may_look(self, request: web.Request) -> bool:
        readers = self.status_readers()
        return readers == "any" or (readers == "loopback" and _from_loopback(request) and _by_address(request))

    async def _forget_claim(self, request: web.Request) -> web.Response:
        assert self.forget_claim
        if not _from_loopback(request) or FORGET_HEADER not in request.headers:
            return _forbidden("this request")
        uid = request.match_info["uid"]
        if not _CLAIM_UID.fullmatch(uid):
            return _json({"forgotten": False, "why": "that is no UID of a claim"}, status=400)
        answer = await self.forget_claim(uid)
        return _json(answer, status=200 if answer["forgotten"] else 409)

    async def _resize(self, request: web.Request) -> web.Response:
        assert self.resize
        if not _from_loopback(request) or RESIZE_HEADER not in request.headers:
            return _forbidden("this request")
        text = await request.content.read(MAX_RESIZE_BYTES + 1)
        try:
            body = json.loads(text) if len(text) <= MAX_RESIZE_BYTES else None
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return _json({"resized": False, "why": "that is no JSON object of a few words"}, status=400)
        answer = await self.resize(body)
        return _json(answer, status=200 if answer["resized"] else 409)


class TelemetryServer:
    """Serves the pages on their own port."""

    def __init__(
        self, host: str, port: int, probes: Probes, *, dropped: Callable[[str], None] = lambda _why: None
    ) -> None:
        self._host = host
        self._wanted = port
        self._probes = probes
        self._connections = Connections(dropped=dropped)
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; the configured one before the start."""
        return int(self._socket.getsockname()[1]) if self._socket else self._wanted

    async def start(self) -> None:
        """Listen. ``HamiError`` if the address is unavailable."""
        try:
            self._socket = listening(self._host, self._wanted)
        except (OSError, UnicodeError) as error:
            raise cannot_listen(self._host, self._wanted, error) from error
        app = web.Application(middlewares=[self._connections.noticing])
        self._probes.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S, keepalive_timeout=75.0)
        await self._runner.setup()
        assert self._runner.server
        self._connections.start(self._runner.server, self._socket)

    async def stop(self) -> None:
        """Close the port and every connection, within two seconds. Harmless when nothing was started."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        self._connections.stop()
        if listener is not None:
            listener.close()
        if runner is not None:
            async with asyncio.timeout(_STOP_S):
                await runner.cleanup()
        self._connections.close()


def listening(host: str, port: int, *, backlog: int = 1024) -> socket.socket:
    """Open a listening socket. ``::`` accepts IPv4 too, as usual in pods.

    ``OSError`` or ``UnicodeError`` if the address is unavailable.
    """
    if ":" not in host:
        return socket.create_server((host, port), backlog=backlog)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=both)


async def document(name: str, make: Callable[[], Mapping[str, object]], request: web.Request) -> web.Response:
    """What is made for this host or pod only."""
    return _json(make()) if _from_loopback(request) else _forbidden(f"the {name}")


def _from_loopback(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    try:
        address = ipaddress.ip_address(peer[0]) if peer else None
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def _by_address(request: web.Request) -> bool:
    """Whether the server was named by an address: a name could be a website's that leads a browser here."""
    name = request.url.host or ""
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _page_headers() -> dict[str, str]:
    from hami_plugin.telemetry.status_page import policy  # noqa: PLC0415  # a page that nobody looks at costs nothing

    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy(),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _forbidden(what: str, more: str = "") -> web.Response:
    why = f"{what} is served on the loopback address only; use kubectl port-forward or kubectl exec{more}"
    return _json({"error": why}, status=403)


def _json(value: Mapping[str, object], *, status: int = 200) -> web.Response:
    text = json.dumps(value, indent=2, default=str) + "\n"
    return web.Response(
        text=text, status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


def cannot_listen(
    host: str,
    port: int,
    error: OSError | UnicodeError,
    *,
    what: str = "probes and metrics",
    keys: tuple[str, str] = ("httpHost", "httpPort"),
) -> HamiError:
    """Why an address is unavailable, and what to do. ``keys`` are the settings of its host and port."""
    host_key, port_key = keys
    number = error.errno if isinstance(error, OSError) else 0
    match number:
        case errno.EADDRINUSE:
            why, hint = "another process uses this port", f"stop it, or choose another {port_key}"
        case errno.EACCES | errno.EPERM:
            why, hint = "permission denied", f"ports below 1024 need CAP_NET_BIND_SERVICE; choose another {port_key}"
        case errno.EADDRNOTAVAIL:
            why, hint = (
                "this machine does not have this address",
                f"set {host_key} to 0.0.0.0 or to an address of this machine",
            )
        case _:
            why, hint = getattr(error, "strerror", None) or str(error), f"check {host_key} and {port_key}"
    return HamiError(f"cannot listen on {host}:{port} for {what}: {why}", hint=hint)
