"""The port on which kube-scheduler and the API server ask: who may call, bounded bodies, deadlines and answers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Protocol

from aiohttp import web

from hami_plugin.config.settings import SchedulerSettings
from hami_plugin.errors import HamiError, WireError
from hami_plugin.process.concurrency import run_in_slices
from hami_plugin.process.log import logger
from hami_plugin.scheduler.extender.certificates import common_name, issued
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics
from hami_plugin.scheduler.extender.payloads import MAX_VALUES, Json, mapping, parse_json_pausing, values
from hami_plugin.telemetry.connections import Connections
from hami_plugin.telemetry.http import Probes, cannot_listen, listening


class Budget:
    """Bytes that may be taken at once. A part of another budget takes of both."""

    def __init__(self, most: int, *, of: Budget | None = None) -> None:
        self.most = most
        self._whole = of
        self._taken = 0

    @property
    def left(self) -> int:
        own = self.most - self._taken
        return min(own, self._whole.left) if self._whole else own

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, size: int) -> bool:
        """Whether so many were left; then they are taken."""
        if size > self.left:
            return False
        self.give_back(-size)
        return True

    def give_back(self, size: int) -> None:
        self._taken -= size
        if self._whole:
            self._whole.give_back(size)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """What is taken by it is given back in the end."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.give_back(lease.size)


class Lease:
    """What one request has of a budget."""

    def __init__(self, budget: Budget) -> None:
        self.size = 0
        self.budget = budget

    def take(self, size: int) -> bool:
        """Whether so many more were left; then they are taken."""
        if not self.budget.take(size):
            return False
        self.size += size
        return True


MIB = 1 << 20

OPEN_PART = 4
"""What anybody may send has a quarter of the room for requests: kube-scheduler's always find some."""
_BY_NAME = (
    "set nodeCacheCapable: true in the extender's stanza, so that nodes are sent by name, or raise filterMebibytes"
)

ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take: bytes of its body, seconds until that has arrived, seconds until it is answered, and how
    many are answered at once; those above it wait. ``budget`` is for the bodies of all that are read, wait or are
    answered. ``remedy`` is what to do about a body that is too large.
    """

    body: int
    read_s: float
    answer_s: float
    at_once: int
    budget: Budget
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path. ``local``: only callers on this host are served. ``certified``: only those that show a certificate of
    the webhook's authority, with one of ``names`` if there are any. ``refusing``: whether an answer is a refusal.

    ``failure`` makes the answer for an error, where the protocol has one; else an HTTP status does.
    """

    path: str
    answer: Callable[[Json], Awaitable[Json]]
    limits: Limits
    refusing: Callable[[Json], bool]
    local: bool = False
    certified: bool = False
    names: Collection[str] = ()
    failure: Callable[[str], Json] | None = None


class Deciding(Protocol):
    """Who answers."""

    async def filter(self, request: Json) -> Json: ...
    async def bind(self, request: Json) -> Json: ...
    async def review(self, request: Json) -> Json: ...


def kinds(extender: Deciding, settings: SchedulerSettings) -> tuple[Route, ...]:
    """The three calls of HAMi's scheduler, under HAMi's paths."""
    local = settings.extender_peers == "loopback"
    read_s, answer_s = settings.read_seconds, settings.answer_seconds
    budget = Budget(settings.request_mebibytes * MIB)
    open_to_all = Budget(budget.most // OPEN_PART, of=budget)
    return (
        Route(
            path="/filter",
            answer=extender.filter,
            limits=Limits(
                body=settings.filter_mebibytes * MIB,
                read_s=read_s,
                answer_s=answer_s,
                at_once=4,
                budget=budget,
                remedy=_BY_NAME,
            ),
            refusing=_no_node,
            local=local,
            failure=_error,
        ),
        Route(
            path="/bind",
            answer=extender.bind,
            limits=Limits(
                body=MIB,
                read_s=read_s,
                answer_s=answer_s,
                at_once=1000,
                budget=budget,
                remedy="a bind names a pod and a node",
            ),
            refusing=lambda answer: bool(answer.get("Error")),
            local=local,
            failure=_error,
        ),
        Route(
            path="/webhook",
            answer=extender.review,
            limits=Limits(
                body=3 * MIB,
                read_s=read_s,
                answer_s=settings.review_seconds,
                at_once=100,
                budget=open_to_all,
                remedy="an API server itself takes no larger pod",
            ),
            refusing=lambda answer: not mapping(answer.get("response")).get("allowed"),
            certified=settings.webhook_client_ca is not None,
            names=settings.webhook_client_names,
        ),
    )


def status(code: int, reason: str, message: str) -> Json:
    """A v1 Status: the API server shows its message when a webhook fails."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _no_node(answer: Json) -> bool:
    nodes = mapping(answer.get("Nodes")).get("items")
    return bool(answer.get("Error")) or not (answer.get("NodeNames") or nodes)


def _error(why: str) -> Json:
    """kube-scheduler shows this in the pod's Event, and of an HTTP status the number only."""
    return {"Error": why}


log = logger(__name__)

_SECONDS = re.compile(r"([0-9]{1,3})s")
_MIN_S, _EARLIER = 0.1, 0.9
_BLOCK = 1 << 16
"""Bytes of a body that lie together. Smaller pieces are joined to so many, or each would cost more than it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, and the outcome that it is counted under."""

    outcome: str
    response: web.Response


class UnreadableError(Exception):
    """A request that was not read to its end, or is no JSON object. ``retry_s``: after so long it may be read."""

    def __init__(self, code: HTTPStatus, outcome: str, why: str, *, retry_s: int = 0) -> None:
        super().__init__(why)
        self.code = code
        self.outcome = outcome
        self.retry_s = retry_s


class RequestHandler:
    """Extender all calls of one kind."""

    def __init__(self, kind: Route, metrics: SchedulerMetrics) -> None:
        self._kind = kind
        self._metrics = metrics
        self._places = asyncio.Semaphore(kind.limits.at_once)

    async def __call__(self, request: web.Request) -> web.Response:
        path, began, outcome = self._kind.path, time.monotonic(), "cancelled"
        self._metrics.began(path)
        try:
            reply = await self._reply(request)
            outcome = reply.outcome
            return reply.response
        finally:
            self._metrics.ended(path, outcome, time.monotonic() - began)

    async def _reply(self, request: web.Request) -> Reply:
        within = time_to_answer(request.query, self._kind.limits.answer_s)
        try:
            async with asyncio.timeout(within) as deadline:
                with self._kind.limits.budget.lease() as lease:
                    wanted = await self._read(request, lease)
                    async with self._places:
                        return self._answered(await self._kind.answer(wanted))
        except UnreadableError as error:
            return self._unreadable(error)
        except WireError as error:
            return self._unreadable(UnreadableError(HTTPStatus.BAD_REQUEST, "malformed", str(error)))
        except HamiError as error:
            return self._failed("failed", HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:  # whoever called gets an answer, and the next caller too
            if isinstance(error, TimeoutError) and deadline.expired():
                why = f"hami-plugin scheduler: no answer within {within:g} s; it is tried again"
                log.warning("call given up", path=self._kind.path, after_s=within)
                return self._failed("deadline", HTTPStatus.GATEWAY_TIMEOUT, why)
            log.exception("call failed", path=self._kind.path)
            why = "hami-plugin scheduler: internal error; its log has the reason"
            return self._failed("internal", HTTPStatus.INTERNAL_SERVER_ERROR, why)

    def _answered(self, body: Json) -> Reply:
        failed = body.get("FailedNodes")
        if isinstance(failed, Mapping):
            self._metrics.refused(failed)
        return Reply(outcome=REFUSED if self._kind.refusing(body) else ANSWERED, response=answer(body))

    def _failed(self, outcome: str, code: HTTPStatus, why: str) -> Reply:
        response = answer(self._kind.failure(why)) if self._kind.failure else refusal(code, why)
        return Reply(outcome=outcome, response=response)

    def _unreadable(self, error: UnreadableError) -> Reply:
        log.warning("request refused", path=self._kind.path, why=str(error))
        headers = {"Retry-After": str(error.retry_s)} if error.retry_s else None
        response = refusal(error.code, str(error), headers=headers)
        response.force_close()  # the rest of the request may still be on its way
        return Reply(outcome=error.outcome, response=response)

    def _forbidden(self, request: web.Request) -> str:
        """Why whoever calls is not answered here; empty when it is."""
        kind = self._kind
        if kind.local and not (_on_this_host(request.remote) or _certificate(request, webhook=False)):
            return (
                f"{kind.path} is for a kube-scheduler on this host, and {request.remote} is not on it; "
                "run it in the same pod, or give it a certificate of clientCa, or set extenderPeers: any"
            )
        if not kind.certified:
            return ""
        shown = _certificate(request, webhook=True)
        if shown is None:
            return (
                f"{kind.path} is for an API server with a client certificate of webhookClientCa; name one for this "
                "webhook in the file of --admission-control-config-file"
            )
        if kind.names and common_name(shown) not in kind.names:
            return f"{kind.path} is for {', '.join(kind.names)} (webhookClientNames), not for {common_name(shown)!r}"
        return ""

    async def _read(self, request: web.Request, lease: Lease) -> Json:
        if why := self._forbidden(request):
            raise UnreadableError(HTTPStatus.FORBIDDEN, "forbidden", why)
        limits = self._kind.limits
        try:
            async with asyncio.timeout(limits.read_s):
                body = await _body(request, limits, lease)
        except TimeoutError as error:
            why = f"the request did not arrive within {limits.read_s:g} s"
            raise UnreadableError(HTTPStatus.REQUEST_TIMEOUT, "slow request", why) from error
        return await _json_object(body, trusted=self._kind.local)


def answer(body: Json, *, code: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    text = json.dumps(body, separators=(",", ":")).encode()
    return web.Response(body=text, status=code, content_type="application/json", headers=headers)


def refusal(code: int, why: str, *, headers: Mapping[str, str] | None = None) -> web.Response:
    """An HTTP status with its reason, as a v1 Status."""
    name = HTTPStatus(code).phrase.title().replace(" ", "").replace("-", "")
    return answer(status(code, name, why), code=code, headers=headers)


def time_to_answer(query: Mapping[str, str], most: float) -> float:
    """How many seconds a call has: ``most``, or a little less than the caller waits.

    The API server sends it, as ``timeout=10s``. A refusal in time is worth more than an answer too late.
    """
    given = _SECONDS.fullmatch(query.get("timeout", ""))
    return min(most, max(_MIN_S, int(given.group(1)) * _EARLIER)) if given else most


async def _body(request: web.Request, limits: Limits, lease: Lease) -> bytes:
    """All of a request's body. Refused unread when its headers say that it is too large, or packed; and as
    soon as all bodies together are.
    """
    announced = request.content_length or 0
    if announced > limits.body:
        raise _too_large(limits)
    if announced > lease.budget.left:
        raise _too_many(lease)
    packed = request.headers.get("Content-Encoding", "identity")
    if packed != "identity":
        why = f"the request is packed ({packed}); send it as it is"
        raise UnreadableError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "malformed", why)
    # In blocks: a hundred bodies that grow as one piece each are moved again and again, and leave holes between them.
    blocks: list[bytearray] = []
    try:
        async for piece in request.content.iter_any():
            if lease.size + len(piece) > limits.body:
                raise _too_large(limits)
            if not lease.take(len(piece)):
                raise _too_many(lease)
            if blocks and len(blocks[-1]) < _BLOCK:
                blocks[-1] += piece
            else:
                blocks.append(bytearray(piece))
    except (web.RequestPayloadError, ConnectionError) as error:
        why = f"the request broke off: {error or type(error).__name__}"
        raise UnreadableError(HTTPStatus.BAD_REQUEST, "malformed", why) from error
    return b"".join(blocks)


def _too_large(limits: Limits) -> UnreadableError:
    why = f"the request is larger than {limits.body >> 20} MiB; {limits.remedy}"
    return UnreadableError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large", why)


def _too_many(lease: Lease) -> UnreadableError:
    budget = lease.budget
    why = (
        f"requests of {budget.taken >> 20} MiB are being read or answered, and there is room for {budget.most >> 20} "
        "MiB of such together (requestMebibytes); try again in a second"
    )
    return UnreadableError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", why, retry_s=1)


async def _json_object(body: bytes, *, trusted: bool) -> Json:
    if not trusted and (count := values(body)) > MAX_VALUES:
        why = f"the request has some {count} values, and at most {MAX_VALUES} are read"
        raise UnreadableError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large", why)
    try:
        read = await run_in_slices(parse_json_pausing(body))
    except ValueError as error:
        why = f"the request is no JSON that can be read: {error}"
        raise UnreadableError(HTTPStatus.BAD_REQUEST, "malformed", why) from error
    if not isinstance(read, dict):
        why = f"the request is JSON, but no object: {type(read).__name__}"
        raise UnreadableError(HTTPStatus.BAD_REQUEST, "malformed", why)
    return read


def _certificate(request: web.Request, *, webhook: bool) -> Mapping[str, Any] | None:
    """The client certificate, if TLS has found it good and it is of the authority for this."""
    transport = request.transport
    tls = transport.get_extra_info("ssl_object") if transport else None
    shown = transport.get_extra_info("peercert") if transport else None
    return shown if tls and issued(tls.context, shown, webhook=webhook) else None


def _on_this_host(remote: str | None) -> bool:
    if remote is None:
        return False
    address = ip_address(remote.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


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

    def __init__(
        self, *, host: str, port: int, kinds: Sequence[Route], probes: Probes, metrics: SchedulerMetrics
    ) -> None:
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
        """Listen, with TLS if there is a context. ``HamiError`` when the address is unavailable.

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
