"""Requests to the API server, and their responses as JSON or as a ``ClusterError``.

Each has credentials, a deadline, heeds Retry-After, and its outcome is observed.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from hami_plugin.cluster.credentials import Access, Credentials, stamp, without_system_authorities
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Observer
from hami_plugin.model.views import Json, anonymous, misshapen
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger

with without_system_authorities():
    import aiohttp

MAX_DEPTH = 100
"""Levels of nesting. A pod needs about a dozen, its managedFields a few more."""
MAX_DIGITS = 40

_TOO_DEEP = "-Infinity"
"""A constant that Python's parser passes to a function, and that no JSON has."""
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Brackets, and whole strings: possessive, so that an unbalanced quote does not cause backtracking."""

_TERMINATED = "because it is being terminated"
"""The message of an API server that refuses objects in a namespace that is being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedJson:
    """Parsed JSON. ``truncated`` names objects that were read only in part, and ``why`` is the first reason.

    ``shaped``: it holds what was asked for and nothing else, every value of its type.
    """

    value: Any
    shaped: bool = False
    truncated: Sequence[str] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One request. ``verb`` and ``kind`` are those of RBAC; ``name`` is for messages."""

    verb: str
    kind: str
    path: str
    name: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    strategic: bool = False
    """Of a patch: lists are merged by their keys."""

    @property
    def method(self) -> str:
        return {"create": "POST", "patch": "PATCH", "update": "PUT", "delete": "DELETE"}.get(self.verb, "GET")

    @property
    def content_type(self) -> str:
        if self.verb != "patch":
            return "application/json"
        return f"application/{'strategic-' if self.strategic else ''}merge-patch+json"

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}".rstrip()


Shape = Callable[[bytes], Any]
"""Parses JSON of one kind: the members that are wanted, of the types that they should have, and passes over the rest.
It raises where they have others.
"""
_OTHERWISE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


async def read(body: bytes, shape: Shape | None = None) -> ParsedJson:
    """Parse JSON of any depth, by its ``shape`` if it has that. ``ValueError`` for anything else.

    A pod's author can hide a tree of any depth in its ``managedFields``. Values that are nested too deeply, and numbers
    with too many digits, are left out, so that all other objects can be read. Invalid UTF-8 is replaced. This takes
    several times as long, and so runs beside the event loop.
    """
    if shape:
        with suppress(*_OTHERWISE):
            return ParsedJson(value=shape(body), shaped=True)
    try:
        return ParsedJson(value=json.loads(body))
    except RecursionError:
        why = f"it is nested more than {MAX_DEPTH} levels deep"
    except ValueError as error:
        why = str(error)
    return await asyncio.to_thread(_Lenient(why).read, body)


class _Lenient:
    """Parses JSON that Python's parser alone refuses."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._left_out = False
        self._truncated: list[str] = []

    def read(self, body: bytes) -> ParsedJson:
        text = body.decode("utf-8", "replace")
        self._left_out = "\ufffd" in text and not _is_utf8(body)
        value = json.loads(
            _without_depths(text), parse_constant=self._constant, parse_int=self._number, object_hook=self._object
        )
        if self._left_out:
            self._truncated.append("")
        return ParsedJson(value=value, truncated=self._truncated, why=self._why)

    def _constant(self, name: str) -> float | None:
        if name == _TOO_DEEP:
            self._left_out = True
            return None
        return float(name.lower())

    def _number(self, digits: str) -> int | None:
        if len(digits) <= MAX_DIGITS:
            return int(digits)
        self._left_out = True
        return None

    def _object(self, found: dict[str, Any]) -> dict[str, Any]:
        """Objects are parsed from the inside out: the first with a name around a gap is the truncated one."""
        if self._left_out and (name := object_name(found)):
            self._left_out = False
            self._truncated.append(name)
        return found


def _without_depths(text: str) -> str:
    """The text with a constant in place of values that are nested too deeply."""
    kept: list[str] = []
    depth, start = 0, 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept.append(text[start : match.start()])
        elif bracket in "]}":
            if depth == MAX_DEPTH + 1:
                kept.append(_TOO_DEEP)
                start = match.end()
            depth -= 1
    if depth:
        raise ValueError(f"{abs(depth)} brackets are unbalanced")
    return "".join((*kept, text[start:]))


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def object_name(item: object) -> str:
    """An object's namespace and name, as far as it has them."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(meta, dict):
        return ""
    return "/".join(part[:253] for key in ("namespace", "name") if isinstance(part := meta.get(key), str) and part)


async def decode_object(call: ApiCall, body: bytes, shape: Shape | None = None) -> ParsedJson:
    """Parse a JSON object. ``ClusterError`` if the body is truncated or anything else."""
    try:
        found = await read(body, shape)
    except ValueError as error:
        raise _unreadable(call, body) from error
    if not isinstance(found.value, dict):
        raise _unreadable(call, body)
    return found


async def refused_error(call: ApiCall, status: int, body: bytes, retry_after: float | None = None) -> ClusterError:
    """The error for a failed request, with the server's own message."""
    message = await _message(body)
    if call.verb == "patch" and status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in message:
        # A patch that names another UID changes an immutable field: 422 from some servers, 409 from others.
        status = HTTPStatus.CONFLICT
    if call.verb == "create" and status == HTTPStatus.FORBIDDEN and _TERMINATED in message:
        # No permission is missing: the namespace is going away.
        status = HTTPStatus.GONE
    detail = f": {message}" if message else ""
    return ClusterError(
        f"{call}: {status} {_phrase(status)}{detail}",
        status=status,
        retry_after=retry_after,
        hint=_hint(call, status, retry_after),
    )


def unanswered_error(call: ApiCall, why: object) -> ClusterError:
    """The error for a request without a response."""
    return ClusterError(
        f"{call}: no answer from the API server: {why}",
        hint="it is retried; if it persists, check the network between this node and the API server",
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header in seconds. A date is ignored, since it would compare two machines' clocks."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _unreadable(call: ApiCall, body: bytes) -> ClusterError:
    return ClusterError(
        f"{call}: the response is not a JSON object ({len(body)} bytes, starting with {bytes(body[:40])!r})",
        hint="it is retried; a proxy in front of the API server may truncate or replace responses",
    )


async def _message(body: bytes) -> str:
    try:
        status = (await read(body)).value
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    return message_text(status.get("message")) if isinstance(status, dict) else ""


def message_text(message: object) -> str:
    """A message of an API server, cut to a readable length; empty if it is not text."""
    return message[:500] if isinstance(message, str) else ""


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""


def _hint(call: ApiCall, status: int, wait: float | None) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "the API server has an internal problem; it is retried"
    too_large = "the same body will be refused again; correct or shorten the field in the message"
    remedies: dict[int, str] = {
        HTTPStatus.UNAUTHORIZED: "check that the service account exists and that its token is mounted and not expired",
        HTTPStatus.FORBIDDEN: f'allow verb "{call.verb}" on "{call.kind}" in the ClusterRole of our service account',
        HTTPStatus.CONFLICT: "the object was changed or replaced; read it again before the next attempt",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: too_large,
        HTTPStatus.UNPROCESSABLE_ENTITY: too_large,
        HTTPStatus.TOO_MANY_REQUESTS: f"the API server is busy; writes wait {wait or 1:g} s",
    }
    return remedies.get(status, "")


RETRY_AFTER_CAP = 120.0


class Gate:
    """Closed while the server has asked us to wait (Retry-After). One gate for all writers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opens = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until it opens; 0 when it is open."""
        return max(0.0, self._opens - self._clock())

    def shut(self, seconds: float) -> None:
        """Stay closed for ``seconds``, capped: a wrong header must not stop writes for a day."""
        self._opens = max(self._opens, self._clock() + min(seconds, RETRY_AFTER_CAP))


class ListPace:
    """At most one turn in ``every`` seconds over time; ``burst`` turns may follow at once after a quiet time."""

    def __init__(self, *, every: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._allowance = every * (burst - 1)
        self._clock = clock
        self._due = 0.0

    @property
    def wait(self) -> float:
        """For how long the next turn would have to wait."""
        return max(0.0, self._due - self._allowance - self._clock())

    def take(self) -> float:
        """Take the next turn; the answer is how long to wait before using it."""
        wait = self.wait
        self._due = max(self._due, self._clock()) + self._every
        return wait

    async def turn(self) -> None:
        await asyncio.sleep(self.take())


RENEW_INTERVAL_S = 10.0
"""The minimum time between two clients that replace one whose certificate was refused."""
MAX_CERTIFICATE_BYTES = 2**20
"""Bytes of a file that are compared with those before."""
READ_BYTES = 2**16
"""Read buffer of a connection. The library's default would be a megabyte for each watch."""

Fingerprint = tuple[object, ...]

log = logger(__name__)


class Client:
    """A pool of at most ``connections`` connections with one set of certificates. Callers wait for a free one.

    The library reuses the connection that was idle longest, so that none expires while calls come: without a bound
    there would be as many as were ever needed at once.
    """

    def __init__(self, access: Access, connections: int) -> None:
        self._access = access
        self._proxy = access.proxy or _proxy(access.host)
        context = access.context()
        if context is None and self._proxy.startswith("https:"):
            context = ssl.create_default_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=context or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BYTES,
        )
        self._streams: set[asyncio.Timeout] = set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's own type
    ) -> aiohttp.ClientResponse:
        """The response once its headers have arrived. The caller reads its body and releases it."""
        return await self._session.request(
            method,
            f"{self._access.host}{path}",
            headers=headers,
            data=None if body is None else json.dumps(body).encode(),
            timeout=timeout,
            proxy=self._proxy or None,
            server_hostname=self._access.server_name or None,
        )

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Whoever reads a stream does so in here, and loses the connection when the client closes.

        The library would leave a reader waiting: a connection that is closed from this side wakes nobody.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._streams.add(limit)
                try:
                    yield
                finally:
                    self._streams.discard(limit)
        except TimeoutError as error:
            if limit.expired():
                raise aiohttp.ClientConnectionError("its certificates have been replaced") from error
            raise

    async def close(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self._streams:
            limit.reschedule(now)
        await self._session.close()


def _proxy(host: str) -> str:
    """The environment's proxy for this address (``HTTPS_PROXY``, ``NO_PROXY``); empty where there is none."""
    parts = urlsplit(host)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return ""
    return getproxies().get(parts.scheme, "")


class Clients:
    """The current client. A connection keeps the certificates that it began with, so new certificates need a new
    client; the old one has ``grace`` seconds to finish its calls.
    """

    def __init__(self, credentials: Credentials, *, grace: float, connections: int) -> None:
        self._credentials = credentials
        self._grace = grace
        self._connections = connections
        self._stamps = self._stamped()
        self._used = self._fingerprint()
        self._client = Client(credentials.access, connections)
        self._leaving: dict[asyncio.Task[None], Client] = {}
        self._pace = ListPace(every=RENEW_INTERVAL_S, burst=2)
        self._problem = ""

    async def present(self) -> Client:
        """The current client. It stays while new files cannot be used."""
        try:
            await self._credentials.follow()
        except ClusterError as error:
            self._report(str(error))
        if (stamps := self._stamped()) != self._stamps:
            if (used := self._fingerprint()) == self._used:
                self._stamps = stamps
            elif self._replace():
                self._stamps, self._used = stamps, used
                files = [str(path) for path in self._credentials.access.files]
                log.info("certificates for the API server reloaded", files=files)
        return self._client

    async def renew(self) -> bool:
        """Reload everything after a refused certificate, at most once in a while. Whether it was done."""
        if self._pace.wait:
            return False
        self._pace.take()
        try:
            await self._credentials.renew()
        except ClusterError as error:
            self._report(str(error))
        self._stamps = self._stamped()
        self._used = self._fingerprint()
        return self._replace()

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        for client in (self._client, *self._leaving.values()):
            await client.close()

    def _replace(self) -> bool:
        try:
            fresh = Client(self._credentials.access, self._connections)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self._report(f"unusable: {error}")
            return False
        self._problem = ""
        leaving = asyncio.get_running_loop().create_task(self._leave(self._client))
        self._leaving[leaving] = self._client
        leaving.add_done_callback(lambda task: self._leaving.pop(task, None))
        self._client = fresh
        return True

    async def _leave(self, client: Client) -> None:
        await asyncio.sleep(self._grace)
        await client.close()

    def _stamped(self) -> Fingerprint:
        """What changes whenever a file is written, or read as another access."""
        access = self._credentials.access
        return (access, *(stamp(path) for path in access.files))

    def _fingerprint(self) -> Fingerprint:
        """What a client is made of. With each token, about hourly, the kubelet writes the authority's file anew as it
        was: that is no reason for another client.
        """
        access = self._credentials.access
        return (*access.connected_by, *(_content(path) for path in access.files))

    def _report(self, why: str) -> None:
        if why != self._problem:
            self._problem = why
            log.warning("certificates for the API server not reloaded", why=why)


def _content(path: Path) -> bytes | None:
    """None for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_CERTIFICATE_BYTES)
    except OSError:
        return None


LOG_INTERVAL_S = 600.0
MAX_LOGGED = 64
"""Objects named in that time. More of them would flood the log."""


class UnreadableObjects:
    """Logs unreadable objects, each at most once in ``LOG_INTERVAL_S``: their authors could repeat them for ever."""

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def note(self, kind: str, name: str, why: str) -> None:
        """Count and log one unreadable object. ``name`` may be empty."""
        self._observer.unreadable(kind)
        now = self._clock()
        self._logged = {key: at for key, at in self._logged.items() if now - at < LOG_INTERVAL_S}
        if (kind, name) in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged[kind, name] = now
        log.warning("an object cannot be read", kind=kind, object=name, why=why[:300])


FORBIDDEN = "APIForbidden"
NOT_YET = "the API server has not answered yet"


class Reachability:
    """Whether the API server answers, by the outcome of each call. A missing permission stays until that call
    succeeds.
    """

    def __init__(self) -> None:
        self.problem = Watched(NOT_YET)
        self._failure = NOT_YET
        self._unauthorized = ""
        self._forbidden: dict[tuple[str, str], str] = {}

    def outdated(self, kind: str) -> str:
        """Why known objects of this kind may be outdated; empty while they are current."""
        forbidden = (self._forbidden.get((verb, kind), "") for verb in ("list", "watch"))
        return "; ".join(filter(None, (self._failure, self._unauthorized, *forbidden)))

    def received(self) -> None:
        """Bytes arrived on an open watch."""
        if self._failure:
            self._failure = ""
            self._publish()

    def succeeded(self, call: ApiCall) -> None:
        if self._failure or self._unauthorized or self._forbidden:
            self._failure = self._unauthorized = ""
            self._forbidden.pop((call.verb, call.kind), None)
            self._publish()

    def failed(self, call: ApiCall, error: ClusterError) -> None:
        match error.status:
            case HTTPStatus.UNAUTHORIZED:
                self._failure, self._unauthorized = "", f"{FORBIDDEN}: {error}"
            case HTTPStatus.FORBIDDEN:
                self._failure = self._unauthorized = ""
                self._forbidden[call.verb, call.kind] = f"{FORBIDDEN}: {error}"
            case 0:
                self._failure = f"unreachable: {error.message}"
            case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._failure = f"failing: {error.message}"
            case _:
                self.succeeded(call)  # it answered, and knew us
        self._publish()

    def _publish(self) -> None:
        reasons = (self._failure, self._unauthorized, *self._forbidden.values())
        self.problem.set("; ".join(reason for reason in reasons if reason))


UNREACHABLE = "unreachable"
_LOST = (aiohttp.ClientError, OSError, TimeoutError)

_BEFORE_SENDING = (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError)

MAX_RESPONSE_BYTES = 64 * 2**20
"""Bytes. A page of 500 usual pods has about 10 MiB."""
PAGE_DEADLINES = 6
"""So many deadlines a page has in all, as long as pieces of it come."""

T = TypeVar("T")


class TooLongError(ClusterError):
    """The response is too long."""


class ApiCalls:
    """Sends calls. It retries only after a 401 with a renewed token, since a 401 changed nothing."""

    def __init__(self, credentials: Credentials, *, observer: Observer, deadline: float, connections: int) -> None:
        self.health = Reachability()
        self.unreadable_objects = UnreadableObjects(observer)
        self._clients = Clients(credentials, grace=deadline, connections=connections)
        self._credentials = credentials
        self._observer = observer
        self._deadline = deadline
        self._gate = Gate()

    async def close(self) -> None:
        await self._clients.close()

    async def json(self, call: ApiCall) -> dict[str, Any]:
        """Send and read the response within the deadline. ``ClusterError`` unless it succeeds."""

        async def read(_: Client, response: aiohttp.ClientResponse, __: asyncio.Timeout) -> ParsedJson:
            return await decode_object(call, await _body(call, response))

        if call.method != "GET":
            await self._pass_gate(call)
        reading = await self._ask(call, aiohttp.ClientTimeout(total=None), read)
        if reading.truncated:
            self.report_truncated(call.kind, reading)
        found: dict[str, Any] = reading.value
        return found

    async def text(self, call: ApiCall) -> str:
        """As ``json``, of what is no JSON, such as a page that the API server passes on."""

        async def read(_: Client, response: aiohttp.ClientResponse, __: asyncio.Timeout) -> bytes:
            return await _body(call, response)

        return (await self._ask(call, aiohttp.ClientTimeout(total=None), read)).decode(errors="replace")

    async def page(self, call: ApiCall, shape: Shape | None = None, *, slack: int = 1) -> ParsedJson:
        """A page of a list. It has ``slack`` times the deadline to begin, and each piece after that. A long page that
        comes slowly is not lost.
        """
        deadline = slack * self._deadline

        async def read(_: Client, response: aiohttp.ClientResponse, limit: asyncio.Timeout) -> bytes:
            clock = asyncio.get_running_loop().time
            latest = clock() + PAGE_DEADLINES * deadline
            return await _body(call, response, lambda: limit.reschedule(min(clock() + deadline, latest)))

        body = await self._ask(call, aiohttp.ClientTimeout(total=None), read, deadline=deadline)
        reading = await decode_object(call, body, shape)
        if reading.truncated:
            self.report_truncated(call.kind, reading)
        return reading

    async def object(self, call: ApiCall, view: Callable[[Json], T]) -> T:
        """As ``json``, for one object. ``ClusterError`` also for one without a name."""
        found = await self.json(call)
        if why := anonymous(found):
            self.unreadable_objects.note(call.kind, call.name, why)
            raise ClusterError(f"{call}: the response is not the requested object: {why}", hint="it is retried")
        if why := misshapen(found):
            self.unreadable_objects.note(call.kind, call.name, why)
        return view(found)

    def report_truncated(self, kind: str, reading: ParsedJson) -> None:
        """Count and log the objects that were read only in part."""
        for name in reading.truncated:
            self.unreadable_objects.note(kind, name, reading.why)

    @asynccontextmanager
    async def stream(self, call: ApiCall, *, silence: float) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Open a watch within the deadline and yield its bytes. It ends after ``silence`` seconds without any."""

        async def opened(
            client: Client, response: aiohttp.ClientResponse, _: asyncio.Timeout
        ) -> tuple[Client, aiohttp.ClientResponse]:
            return client, response

        client, response = await self._ask(call, aiohttp.ClientTimeout(total=None, sock_read=silence), opened)
        _probe_peer(response)
        try:
            async with client.streaming(), aclosing(self._chunks(response)) as chunks:
                yield chunks
        except _LOST as error:
            failure = unanswered_error(call, f"the stream broke: {error or type(error).__name__}")
            self.health.failed(call, failure)
            raise failure from error
        finally:
            response.close()

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        async for chunk in response.content.iter_any():
            self.health.received()
            yield chunk

    async def _ask(
        self,
        call: ApiCall,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's own type; the deadline is ours
        read: Callable[[Client, aiohttp.ClientResponse, asyncio.Timeout], Awaitable[T]],
        *,
        deadline: float = 0.0,
    ) -> T:
        started, outcome, deadline = time.monotonic(), UNREACHABLE, deadline or self._deadline
        try:
            async with asyncio.timeout(deadline) as limit:
                client, response = await self._send(call, timeout)
                if not response.ok:
                    await self._refuse(call, response)
                result = await read(client, response, limit)
            outcome = str(response.status)
        except ClusterError as error:
            outcome = str(error.status) if error.status else UNREACHABLE
            self.health.failed(call, error)
            raise
        except Exception as error:  # the boundary between a server's responses and this process
            why = f"none within {deadline:g} s" if isinstance(error, TimeoutError) else error
            failure = unanswered_error(call, why if str(why) else type(error).__name__)
            self.health.failed(call, failure)
            raise failure from error
        finally:
            self._observer.api_call(call.verb, call.kind, outcome, time.monotonic() - started)
        self.health.succeeded(call)
        return result

    async def _send(self, call: ApiCall, timeout: aiohttp.ClientTimeout) -> tuple[Client, aiohttp.ClientResponse]:  # noqa: ASYNC109  # as above
        identity = self._credentials.authorization()
        try:
            client, response = await self._exchange(call, identity, timeout)
        except (aiohttp.ClientError, OSError) as error:
            # A failed handshake has sent nothing yet, so even a write can be repeated.
            if not _untrusted(error) or not await self._clients.renew() or not isinstance(error, _BEFORE_SENDING):
                raise
            identity = self._credentials.authorization()
            client, response = await self._exchange(call, identity, timeout)
        if response.status == HTTPStatus.UNAUTHORIZED:
            await self._credentials.renew()
            if (renewed := self._credentials.authorization()) != identity:
                response.close()
                client, response = await self._exchange(call, renewed, timeout)
        return client, response

    async def _exchange(
        self,
        call: ApiCall,
        identity: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # as above
    ) -> tuple[Client, aiohttp.ClientResponse]:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # packing a long list costs the server and us more than sending it
            "Content-Type": call.content_type,
            "User-Agent": "hami-plugin",
        }
        if identity:
            headers["Authorization"] = identity
        query = f"?{urlencode(call.query)}" if call.query else ""
        client = await self._clients.present()
        path = f"{call.path}{query}"
        return client, await client.request(call.method, path, headers=headers, body=call.body, timeout=timeout)

    async def _refuse(self, call: ApiCall, response: aiohttp.ClientResponse) -> NoReturn:
        """Raise what a response says that is no success. Writers wait for as long as it asks."""
        wait = retry_after(response.headers)
        if wait is None and response.status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = 1.0
        if wait is not None:
            self._gate.shut(wait)
        raise await refused_error(call, response.status, await _body(call, response), wait)

    async def _pass_gate(self, call: ApiCall) -> None:
        """Wait for the server's Retry-After. A wait that would use up the deadline is refused at once."""
        while left := self._gate.remaining:
            if left > self._deadline / 2:
                raise ClusterError(
                    f"{call}: held back: the API server asked writers to wait {left:.0f} s more",
                    status=HTTPStatus.TOO_MANY_REQUESTS,
                    retry_after=left,
                    hint="it is retried after that",
                )
            await asyncio.sleep(left)


async def _body(call: ApiCall, response: aiohttp.ClientResponse, arrived: Callable[[], None] = lambda: None) -> bytes:
    """The whole response; ``arrived`` is called for each piece. ``TooLongError`` beyond ``MAX_RESPONSE_BYTES``."""
    parts, length = [], 0
    async for chunk in response.content.iter_any():
        length += len(chunk)
        arrived()
        if length > MAX_RESPONSE_BYTES:
            response.close()
            raise TooLongError(
                f"{call}: the response is longer than {MAX_RESPONSE_BYTES} bytes",
                status=response.status,
                hint="lists are retried with smaller pages",
            )
        parts.append(chunk)
    response.release()
    return b"".join(parts)


def _untrusted(error: BaseException | None) -> bool:
    """Whether one side has refused the other's certificate."""
    while error is not None and not isinstance(error, ssl.SSLError | ssl.CertificateError):
        error = error.__cause__
    return error is not None


def _probe_peer(response: aiohttp.ClientResponse) -> None:
    """Enable TCP keepalive, so that a vanished host is noticed in a minute and not at the timeout."""
    connection = response.connection
    peer = connection.transport.get_extra_info("socket") if connection and connection.transport else None
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
