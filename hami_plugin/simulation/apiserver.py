"""A simulated Kubernetes API server for daemons and schedulers: its objects over HTTP, watches, refusals and faults."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

import aiohttp
from aiohttp import web

from hami_plugin.simulation.objects import (
    RESOURCES,
    Filter,
    Object,
    ObjectChange,
    ObjectStore,
    Resource,
    StatusError,
    strategic,
)


class InjectedFault(Enum):
    """What a fault does to a matching request."""

    ERROR = "error"
    HANG = "hang"
    TRUNCATE = "truncate"
    LOSE = "lose"
    EDIT = "edit"


@dataclass(slots=True, kw_only=True)
class Order:
    """Do ``fault`` to the next ``left`` requests (None: all) whose ``VERB /path`` matches ``match``."""

    fault: InjectedFault
    match: re.Pattern[str]
    left: int | None
    status: int = 0
    message: str = ""
    retry_after: float | None = None
    edit: Callable[[bytes], bytes] = bytes


class InjectedFaults:
    """Injected faults, in order. ``latency`` in seconds delays every request first."""

    def __init__(self) -> None:
        self.latency = 0.0
        self._orders: list[Order] = []
        self._released = asyncio.Event()

    def add(self, order: Order) -> None:
        self._orders.append(order)

    def take(self, fault: InjectedFault, request: str) -> Order | None:
        """The next fault that matches this request, counted once."""
        for order in self._orders:
            if order.fault is fault and order.match.search(request):
                if order.left is not None:
                    order.left -= 1
                    if order.left <= 0:
                        self._orders.remove(order)
                return order
        return None

    async def hang(self) -> None:
        """Wait until ``clear``."""
        await self._released.wait()

    def clear(self) -> None:
        """End all faults, and release hanging requests."""
        self.latency = 0.0
        self._orders.clear()
        self._released.set()
        self._released = asyncio.Event()


STRATEGIC = "application/strategic-merge-patch+json"
PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
BODY_BYTES = 3 * 2**20
REQUESTS = "/simulation/requests"
"""The requests so far as JSON, for servers in their own process. It does not list itself."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One received request. ``status`` is 0 if it was never answered; ``at`` is monotonic; ``agent`` the user agent."""

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
    """Serves a store over HTTP, without sockets."""

    def __init__(self, store: ObjectStore, faults: InjectedFaults, bookmark_seconds: float) -> None:
        self.requests: deque[Request] = deque(maxlen=100_000)
        self.tokens: frozenset[str] | None = None
        self.gone_as_http = False
        self.denied: set[tuple[str, str]] = set()
        self.documents: dict[str, Object] = {}
        self.pod_ports: dict[str, str] = {}
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
        for root in dict.fromkeys(resource.root for resource in RESOURCES.values()):
            for prefix in (f"{root}/namespaces/{{namespace}}/{{resource}}", f"{root}/{{resource}}"):
                for suffix in ("", "/{name}", "/{name}/{part}"):
                    app.router.add_route("*", prefix + suffix, self._answer)
        app.router.add_get(REQUESTS, self._list_requests)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{target}/proxy/{path:.*}", self._pass_on)
        app.router.add_route("*", "/apis/{path:.*}", self._answer)
        app.router.add_get("/version", self._answer)
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

    async def _pass_on(self, request: web.Request) -> web.Response:
        """What a pod's port answers, if it is among ``pod_ports`` (``namespace/name:port``)."""
        try:
            self._authenticate(request)
            place = request.match_info
            base = self.pod_ports.get(f"{place['namespace']}/{place['target']}")
            if base is None:
                raise StatusError(503, "ServiceUnavailable", "no endpoints available for the pod")  # noqa: TRY301  # one place makes the Status
        except StatusError as error:
            return web.json_response(error.status, status=error.code)
        async with aiohttp.ClientSession() as session, session.get(f"{base}/{place['path']}") as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    async def _list_requests(self, _request: web.Request) -> web.Response:
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
            if self._faults.take(InjectedFault.HANG, line):
                await self._faults.hang()
            if order := self._faults.take(InjectedFault.ERROR, line):
                retry_after = order.retry_after
                raise StatusError(order.status, REASONS.get(order.status, "InternalError"), order.message)  # noqa: TRY301  # one place makes the Status
            self._authenticate(request)
            if request.path in self.documents and request.method == "GET":
                return web.json_response(self.documents[request.path])
            if request.path == REVIEWS and request.method == "POST":
                return web.json_response(self._review(await _body(request)), status=201)
            resource = self._resource(request)
            if request.method == "GET" and "watch" in request.query and "name" not in request.match_info:
                return await self._watch(request, resource)
            code, answer = await self._serve(request, resource)
        except StatusError as error:
            code, answer = error.code, error.status
        except web.HTTPRequestEntityTooLarge:
            code, answer = 413, StatusError(413, "RequestEntityTooLarge", "limit is 3145728 bytes").status
        body = json.dumps(answer).encode()
        if self._faults.take(InjectedFault.TRUNCATE, line):
            body = body[: len(body) // 2]
        if order := self._faults.take(InjectedFault.EDIT, line):
            body = order.edit(body)
        headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
        return web.Response(status=code, body=body, content_type="application/json", headers=headers)

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.tokens is not None and (scheme.lower() != "bearer" or token not in self.tokens):
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _review(self, body: Mapping[str, Any]) -> Object:
        """An access review of whoever asks."""
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        allowed = (asked.get("verb"), asked.get("resource")) not in self.denied
        return {"kind": "SelfSubjectAccessReview", "metadata": {}, "status": {"allowed": allowed}}

    def _resource(self, request: web.Request) -> Resource:
        place = request.match_info
        resource = RESOURCES.get(place.get("resource", ""))
        alone = "namespace" not in place and "name" not in place  # a list over all namespaces
        if resource is None or not request.path.startswith(f"{resource.root}/"):
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        if not (alone or resource.namespaced == ("namespace" in place)):
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return resource

    async def _serve(self, request: web.Request, resource: Resource) -> tuple[int, Object]:
        place = request.match_info
        namespace, name, part = place.get("namespace", ""), place.get("name", ""), place.get("part", "")
        key = (resource.plural, namespace, name)
        match request.method:
            case "GET" if part in ("", "status"):
                return 200, self._store.get(*key) if name else self._list(request, resource, namespace)
            case "POST" if not name:
                keep = request.query.get("dryRun") != "All"
                return 201, self._store.create(resource, namespace, await _body(request), keep=keep)
            case "POST" if part == "binding" and resource.kind == "Pod":
                binding = await _body(request)
                target, meta = binding.get("target") or {}, binding.get("metadata") or {}
                uid, version = str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))
                self._store.bind(namespace, name, str(target.get("name", "")), uid=uid, version=version)
                return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "PUT" if name and not part:
                return 200, self._store.replace(key, await _body(request))
            case "PATCH" if name and part in ("", "status"):
                if request.content_type not in PATCHES:
                    raise StatusError(
                        415, "UnsupportedMediaType", f"the body of the request was {request.content_type}"
                    )
                patch = await _body(request)
                if request.content_type == STRATEGIC:
                    patch = strategic(self._store.get(*key), patch)
                lost = self._faults.take(InjectedFault.LOSE, f"{request.method} {request.path}")
                keep = lost is None and request.query.get("dryRun") != "All"
                return 200, self._store.patch(key, patch, part=part, keep=keep)
            case "DELETE" if name and not part:
                options = await _body(request) if request.can_read_body else {}
                grace = int(request.query.get("gracePeriodSeconds") or options.get("gracePeriodSeconds") or 0)
                conditions = options.get("preconditions") or {}
                uid, version = str(conditions.get("uid", "")), str(conditions.get("resourceVersion", ""))
                return 200, self._store.delete(key, uid=uid, version=version, grace=grace)
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
        whole = query.get("resourceVersion") == "0"  # the real one's cache has no pages
        limit = len(found) if whole else _number(query, "limit") or len(found)
        page = found[:limit]
        meta: Object = {"resourceVersion": str(version)}
        if len(found) > limit:
            place = json.dumps([version, *page[-1][0]]).encode()
            meta |= {"continue": base64.urlsafe_b64encode(place).decode(), "remainingItemCount": len(found) - limit}
        items = [item for _, item in page]
        return {"kind": f"{resource.kind}List", "apiVersion": resource.version, "metadata": meta, "items": items}

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
            seen = self._store.version.version
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
            await self._store.version.changed(seen, None if math.isinf(pause) else pause)


class _Stream:
    """The stream of one watch, including the fault that truncates a line."""

    def __init__(self, request: web.Request, response: web.StreamResponse, faults: InjectedFaults) -> None:
        self.request = request
        self.broken = False
        self.stalled = False
        self._response = response
        self._faults = faults

    async def deliver(self, wanted: Filter, change: ObjectChange) -> None:
        if not self.broken and (event := wanted.event(change)):
            await self.send(event)

    async def send(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        if self._faults.take(InjectedFault.TRUNCATE, f"{self.request.method} {self.request.path}"):
            self.broken, line = True, line[: len(line) // 2]
        if order := self._faults.take(InjectedFault.EDIT, f"WATCH {self.request.path}"):
            line = order.edit(line)
        if not self.stalled:
            await self._response.write(line)


def _bookmark(resource: Resource, version: int) -> Object:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": resource.version, "metadata": meta}}


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


class SimulatedApiServer:
    """Serves nodes, pods, quotas, events and what ResourceClaims need over HTTP on 127.0.0.1.

    Use it with ``async with``, on one event loop.
    """

    def __init__(self, *, port: int = 0, bookmark_seconds: float = 60.0, ssl: SSLContext | None = None) -> None:
        self.store = ObjectStore()
        self.faults = InjectedFaults()
        self._http = ApiHttp(self.store, self.faults, bookmark_seconds)
        self._port = port
        self._ssl = ssl
        self._runner: web.AppRunner | None = None

    # -- life

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self._port}"

    @property
    def requests(self) -> deque[Request]:
        """The requests, oldest first. A watch is listed when it begins."""
        return self._http.requests

    @property
    def connections(self) -> int:
        """The number of open watches."""
        return len(self._runner.server.connections) if self._runner and self._runner.server else 0

    async def accept(self) -> None:
        """Listen; after ``refuse`` on the same port."""
        app = self._http.application()
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._ssl, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Stop listening and drop every connection. Objects stay."""
        self.drop_watches()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def trust(self, *tokens: str) -> None:
        """Accept only these bearer tokens from now on. Initially every request is accepted."""
        self._http.tokens = frozenset(tokens)

    def deny(self, verb: str, resource: str) -> None:
        """Refuse a right: access reviews say so. Requests are still answered."""
        self._http.denied.add((verb, resource))

    @property
    def documents(self) -> dict[str, Object]:
        """What a GET answers by its path, for kinds that are served no other way."""
        return self._http.documents

    @property
    def pod_ports(self) -> dict[str, str]:
        """Where the ports of pods are (``namespace/name:port``), for requests that are passed on to them."""
        return self._http.pod_ports

    def write_kubeconfig(self, path: Path, *, token: str = "", token_file: Path | None = None) -> Path:
        """A kubeconfig for this server. JSON is YAML."""
        user = {"token": token} if token else {"tokenFile": str(token_file)} if token_file else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": {"server": self.url}}],
            "users": [{"name": "daemon", "user": user}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "daemon"}}],
            "current-context": "simulated",
        }
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return path

    # -- objects, for the other parts of a simulation

    def create_node(self, name: str, *, labels: Mapping[str, str] | None = None, **status: Any) -> Object:
        meta = {"name": name, **({"labels": dict(labels)} if labels else {})}
        return self.store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": status})

    def set_kubelet(self, name: str, version: str) -> Object:
        """Say which version the node's kubelet has."""
        return self.store.patch(
            ("nodes", "", name), {"status": {"nodeInfo": {"kubeletVersion": version}}}, part="status"
        )

    def delete_node(self, name: str) -> None:
        self.store.delete(("nodes", "", name))

    def create_pod(self, manifest: Mapping[str, Any]) -> Object:
        return self.store.create(RESOURCES["pods"], "", manifest)

    def create_quota(self, namespace: str, name: str, hard: Mapping[str, str]) -> Object:
        manifest = {"metadata": {"name": name}, "spec": {"hard": dict(hard)}}
        return self.store.create(RESOURCES["resourcequotas"], namespace, manifest)

    def bind(self, namespace: str, name: str, node: str) -> Object:
        return self.store.bind(namespace, name, node)

    def set_phase(self, namespace: str, name: str, phase: str) -> Object:
        return self.store.patch(("pods", namespace, name), {"status": {"phase": phase}}, part="status")

    def annotate_pod(self, namespace: str, name: str, changes: Mapping[str, str | None]) -> Object:
        return self.store.patch(("pods", namespace, name), {"metadata": {"annotations": dict(changes)}})

    def annotate_node(self, name: str, changes: Mapping[str, str | None]) -> Object:
        return self.store.patch(("nodes", "", name), {"metadata": {"annotations": dict(changes)}})

    def delete_pod(self, namespace: str, name: str, *, grace: int = 0) -> None:
        """With ``grace`` seconds the pod is only marked, until it is deleted again without."""
        self.store.delete(("pods", namespace, name), grace=grace)

    def pods(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["pods"]))]

    def node(self, name: str) -> Object:
        return self.store.get("nodes", "", name)

    def pod(self, namespace: str, name: str) -> Object:
        return self.store.get("pods", namespace, name)

    def slices(self) -> list[Object]:
        """The ResourceSlices, by name: the order in which a scheduler tries them."""
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["resourceslices"]))]

    def delete_slice(self, name: str) -> None:
        self.store.delete(("resourceslices", "", name))

    def create_claim(self, manifest: Mapping[str, Any]) -> Object:
        return self.store.create(RESOURCES["resourceclaims"], "", manifest)

    def create_device_class(self, name: str) -> Object:
        expression = f'device.driver == "{name}"'
        manifest = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        return self.store.create(RESOURCES["deviceclasses"], "", manifest)

    def claim_templates(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["resourceclaimtemplates"]))]

    def claim(self, namespace: str, name: str) -> Object:
        return self.store.get("resourceclaims", namespace, name)

    def claims(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["resourceclaims"]))]

    def set_claim_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> Object:
        """Merge into the claim's status; None removes a field."""
        return self.store.patch(("resourceclaims", namespace, name), {"status": dict(status)}, part="status")

    def delete_claim(self, namespace: str, name: str) -> None:
        self.store.delete(("resourceclaims", namespace, name))

    def events(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["events"]))]

    # -- faults

    def error(
        self,
        status: int,
        *,
        count: int | None = 1,
        match: str = "",
        retry_after: float | None = None,
        message: str = "simulated",
    ) -> None:
        """Answer ``status`` to the next ``count`` requests (None: until ``heal``) whose ``VERB /path`` matches."""
        self._order(InjectedFault.ERROR, match, count, status=status, retry_after=retry_after, message=message)

    def hang(self, match: str = "", *, count: int | None = None) -> None:
        """Read requests and never answer, until ``heal``."""
        self._order(InjectedFault.HANG, match, count)

    def truncate_next(self, match: str = "") -> None:
        """Truncate the next answer; of a watch, truncate the next line and end the stream."""
        self._order(InjectedFault.TRUNCATE, match, 1)

    def lose_next_patch(self, match: str = "") -> None:
        """Answer the next PATCH with 200 and the patched object, but store nothing."""
        self._order(InjectedFault.LOSE, match, 1)

    def edit(self, edit: Callable[[bytes], bytes], match: str = "", *, count: int | None = None) -> None:
        """Let ``edit`` change the bytes of answers to ``VERB /path``, and of each line of a watch, ``WATCH /path``."""
        self._order(InjectedFault.EDIT, match, count, edit=edit)

    def stall_watches(self) -> None:
        """Stall all open watches without closing their connections. Later watches work."""
        self._http.stall_watches()

    def observe(self, observer: Callable[[web.Request], None]) -> None:
        """Show every request to ``observer`` before it is answered."""
        self._http.observers.append(observer)

    def heal(self) -> None:
        self.faults.clear()

    def drop_watches(self) -> None:
        """Drop the connections of all open watches."""
        self._http.drop_watches()

    def expire_watches(self) -> None:
        """End each open watch with an ERROR event, 410."""
        self._http.expire_watches()

    def compact(self, *, as_http: bool = False) -> None:
        """Forget all history: watches from an older version get 410, as an ERROR event or as the HTTP status."""
        self._http.gone_as_http = as_http
        self.store.compact()

    def count(self, match: str = "", *, since: float = 0.0) -> int:
        """The number of requests whose ``VERB /path?query`` matched."""
        pattern = re.compile(match)
        return sum(1 for request in self.requests if request.at >= since and pattern.search(str(request)))

    def _order(self, fault: InjectedFault, match: str, count: int | None, **more: Any) -> None:
        self.faults.add(Order(fault=fault, match=re.compile(match), left=count, **more))


async def serve(port: int, kubeconfig: Path | None) -> None:
    """Run until SIGINT or SIGTERM; the address is the first line of standard output."""
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with SimulatedApiServer(port=port) as server:
        if kubeconfig is not None:
            server.write_kubeconfig(kubeconfig)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hami_plugin.simulation.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig that leads to this server")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.kubeconfig))


if __name__ == "__main__":
    main()
