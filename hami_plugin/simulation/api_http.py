"""How a simulated API server answers over HTTP: routes, refusals, lists and watches, with the ordered faults."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from aiohttp import web

from .api_faults import Fault, Faults
from .api_kinds import RESOURCES, Change, Filter, Object, Resource, StatusError
from .api_objects import ObjectStore

PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
BODY_BYTES = 3 * 2**20
REQUESTS = "/simulation/requests"
"""What was asked so far, as JSON: for whoever runs the server as a process of its own. It does not count itself."""
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that arrived. ``status`` is 0 when it was never answered; ``at`` is monotonic; ``agent`` is who."""

    verb: str
    path: str
    query: Mapping[str, str]
    status: int
    at: float
    agent: str = ""

    @property
    def writes(self) -> bool:
        return self.verb != "GET"

    @property
    def watches(self) -> bool:
        return "watch" in self.query

    def __str__(self) -> str:
        return f"{self.verb} {self.path}?" + "&".join(f"{key}={value}" for key, value in self.query.items())


class ApiHttp:
    """Serves a store. Knows nothing of sockets."""

    def __init__(self, store: ObjectStore, faults: Faults, bookmark_seconds: float) -> None:
        self.requests: deque[Request] = deque(maxlen=100_000)
        self.tokens: frozenset[str] | None = None
        self.gone_as_http = False
        self.observers: list[Callable[[web.Request], None]] = []
        self._store = store
        self._faults = faults
        self._bookmark_seconds = bookmark_seconds
        self._expired = 0
        self._watches: set[asyncio.Transport] = set()
        self._streaming: set[int] = set()
        self._open: set[_Stream] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES)
        for prefix in ("/api/v1/namespaces/{namespace}/{resource}", "/api/v1/{resource}"):
            for suffix in ("", "/{name}", "/{name}/{part}"):
                app.router.add_route("*", prefix + suffix, self._answer)
        app.router.add_get(REQUESTS, self._told)
        return app

    def drop_watches(self) -> None:
        for transport in list(self._watches):
            transport.abort()

    def expire_watches(self) -> None:
        self._expired += 1
        self._store.version.touch()

    def stall_watches(self) -> None:
        for stream in self._open:
            stream.stalled = True

    async def _told(self, _request: web.Request) -> web.Response:
        return web.json_response([asdict(request) for request in self.requests])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        status, at = 0, time.monotonic()
        for observer in self.observers:
            observer(request)
        try:
            response = await self._checked(request)
            status = response.status
        finally:
            self._record(request, status, at)
            self._streaming.discard(id(request))
        return response

    def _record(self, request: web.Request, status: int, at: float) -> None:
        if id(request) not in self._streaming:
            entry = Request(
                verb=request.method,
                path=request.path,
                query=dict(request.query),
                status=status,
                at=at,
                agent=request.headers.get("User-Agent", ""),
            )
            self.requests.append(entry)

    async def _checked(self, request: web.Request) -> web.StreamResponse:
        line, retry_after = f"{request.method} {request.path}", None
        try:
            await asyncio.sleep(self._faults.latency)
            if self._faults.take(Fault.HANG, line):
                await self._faults.hang()
            if order := self._faults.take(Fault.ERROR, line):
                retry_after = order.retry_after
                raise StatusError(order.status, REASONS.get(order.status, "InternalError"), order.message)  # noqa: TRY301  # one place makes the Status
            self._authenticate(request)
            resource = self._resource(request)
            if request.method == "GET" and "watch" in request.query and "name" not in request.match_info:
                return await self._watch(request, resource)
            code, answer = await self._serve(request, resource)
        except StatusError as error:
            code, answer = error.code, error.status
        except web.HTTPRequestEntityTooLarge:
            code, answer = 413, StatusError(413, "RequestEntityTooLarge", "limit is 3145728 bytes").status
        body = json.dumps(answer).encode()
        if self._faults.take(Fault.TRUNCATE, line):
            body = body[: len(body) // 2]
        if order := self._faults.take(Fault.EDIT, line):
            body = order.edit(body)
        headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
        return web.Response(status=code, body=body, content_type="application/json", headers=headers)

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.tokens is not None and (scheme.lower() != "bearer" or token not in self.tokens):
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _resource(self, request: web.Request) -> Resource:
        place = request.match_info
        resource = RESOURCES.get(place["resource"])
        alone = "namespace" not in place and "name" not in place  # a list over all namespaces
        if resource is None or not (alone or resource.namespaced == ("namespace" in place)):
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return resource

    async def _serve(self, request: web.Request, resource: Resource) -> tuple[int, Object]:
        place = request.match_info
        namespace, name, part = place.get("namespace", ""), place.get("name", ""), place.get("part", "")
        key = (resource.plural, namespace, name)
        match request.method:
            case "GET" if not name:
                return 200, self._list(request, resource, namespace)
            case "GET" if part in ("", "status"):
                return 200, self._store.get(*key)
            case "POST" if not name:
                return 201, self._store.create(resource, namespace, await _body(request))
            case "POST" if part == "binding" and resource.kind == "Pod":
                binding = await _body(request)
                target, meta = binding.get("target") or {}, binding.get("metadata") or {}
                uid, version = str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))
                self._store.bind(namespace, name, str(target.get("name", "")), uid=uid, version=version)
                return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "PATCH" if name and part in ("", "status"):
                if request.content_type not in PATCHES:
                    raise StatusError(
                        415, "UnsupportedMediaType", f"the body of the request was {request.content_type}"
                    )
                patch = await _body(request)
                keep = self._faults.take(Fault.LOSE, f"{request.method} {request.path}") is None
                return 200, self._store.patch(key, patch, part=part, keep=keep)
            case "DELETE" if name and not part:
                options = await _body(request) if request.can_read_body else {}
                grace = int(request.query.get("gracePeriodSeconds") or options.get("gracePeriodSeconds") or 0)
                uid = str((options.get("preconditions") or {}).get("uid", ""))
                return 200, self._store.delete(key, uid=uid, grace=grace)
            case _:
                raise StatusError(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    def _list(self, request: web.Request, resource: Resource, namespace: str) -> Object:
        version, query = self._store.version.value, request.query
        if (asked := _number(query, "resourceVersion")) > version:
            raise StatusError(504, "Timeout", f"Too large resource version: {asked}, current: {version}")
        after: tuple[str, str] | None = None
        if token := query.get("continue"):
            version, *last = json.loads(base64.urlsafe_b64decode(token))
            self._store.changes(version)  # 410 when the snapshot is gone
            after = (last[0], last[1])
        wanted = Filter.parse(resource, namespace, query.get("fieldSelector", ""))
        found = [pair for pair in self._store.select(wanted) if after is None or pair[0] > after]
        limit = _number(query, "limit") or len(found)
        page = found[:limit]
        meta: Object = {"resourceVersion": str(version)}
        if len(found) > limit:
            place = json.dumps([version, *page[-1][0]]).encode()
            meta |= {"continue": base64.urlsafe_b64encode(place).decode(), "remainingItemCount": len(found) - limit}
        items = [item for _, item in page]
        return {"kind": f"{resource.kind}List", "apiVersion": "v1", "metadata": meta, "items": items}

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        wanted = Filter.parse(resource, request.match_info.get("namespace", ""), request.query.get("fieldSelector", ""))
        since = _number(request.query, "resourceVersion")
        if since and self.gone_as_http:
            self._store.changes(since)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._record(request, 200, time.monotonic())
        self._streaming.add(id(request))
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        self._watches.add(transport)
        stream = _Stream(request, response, self._faults)
        self._open.add(stream)
        try:
            await self._stream(stream, wanted, since)
        except StatusError as error:
            await response.write(json.dumps({"type": "ERROR", "object": error.status}).encode() + b"\n")
        finally:
            self._watches.discard(transport)
            self._open.discard(stream)
        return response

    async def _stream(self, stream: _Stream, wanted: Filter, since: int) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + (_number(stream.request.query, "timeoutSeconds") or math.inf)
        bookmarks = stream.request.query.get("allowWatchBookmarks") == "true"
        due, expired = clock() + self._bookmark_seconds, self._expired
        if not since:
            since = self._store.version.value
            for _, item in self._store.select(wanted):
                await stream.send({"type": "ADDED", "object": item})
        while not stream.broken and clock() < end:
            looked = self._store.version.version
            if expired != self._expired:
                raise StatusError(410, "Expired", "The resourceVersion for the provided watch is too old.")
            for change in self._store.changes(since):
                since = change.version
                await stream.deliver(wanted, change)
            if bookmarks and clock() >= due and since <= self._store.version.value:
                since = self._store.version.value
                await stream.send(_bookmark(wanted.resource, since))
                due = clock() + self._bookmark_seconds
            pause = max(0.0, min(end, due if bookmarks and since <= self._store.version.value else end) - clock())
            await self._store.version.changed(looked, None if math.isinf(pause) else pause)


class _Stream:
    """One watch's lines, with the fault that cuts one of them."""

    def __init__(self, request: web.Request, response: web.StreamResponse, faults: Faults) -> None:
        self.request = request
        self.broken = False
        self.stalled = False
        self._response = response
        self._faults = faults

    async def deliver(self, wanted: Filter, change: Change) -> None:
        if not self.broken and (event := wanted.event(change)):
            await self.send(event)

    async def send(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        if self._faults.take(Fault.TRUNCATE, f"{self.request.method} {self.request.path}"):
            self.broken, line = True, line[: len(line) // 2]
        if order := self._faults.take(Fault.EDIT, f"WATCH {self.request.path}"):
            line = order.edit(line)
        if not self.stalled:
            await self._response.write(line)


def _bookmark(resource: Resource, version: int) -> Object:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": "v1", "metadata": meta}}


async def _body(request: web.Request) -> Object:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise StatusError(400, "BadRequest", f"couldn't get the object from the body: {error}") from error
    if not isinstance(body, dict):
        raise StatusError(400, "BadRequest", "the body is not an object")
    return body


def _number(query: Mapping[str, str], name: str) -> int:
    try:
        return int(query.get(name) or 0)
    except ValueError:
        raise StatusError(400, "BadRequest", f"invalid {name}: {query[name]}") from None
