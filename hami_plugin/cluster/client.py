"""The ports ``NodeApi`` and ``Cluster`` at a real API server: one node for its daemon, all nodes for a scheduler."""

from __future__ import annotations

import os
import re
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from hami_plugin.cluster.credentials import SERVICE_ACCOUNT, Credentials, find_credentials
from hami_plugin.cluster.informer import Informer, ListWatch, WatchTiming
from hami_plugin.cluster.requests import ApiCall, ApiCalls
from hami_plugin.errors import ClusterError, ConfigError
from hami_plugin.model.ports import Annotations, NullObserver, Observer, PodFeed, Subject
from hami_plugin.model.views import (
    BriefNode,
    BriefPod,
    Feed,
    Json,
    NodeView,
    PodPatch,
    PodView,
    QuotaView,
    brief_pod_view,
    changed_pod_view,
    node_view,
    pod_view,
    quota_view,
    shaped_pod_view,
)
from hami_plugin.process.concurrency import Watched

CONNECTIONS = 6
"""Of a daemon: up to three watches, and three calls at a time. A node's pods are admitted one after the other, as are
their patches.
"""
WIDE_CONNECTIONS = 64
"""Of a scheduler. Three watches; all others are for pods that are bound at the same time."""
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
QUOTAS = "/api/v1/resourcequotas"
RESOURCES_OF_CLAIMS = "/apis/resource.k8s.io/v1"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
LIVING = "status.phase!=Succeeded,status.phase!=Failed"

T = TypeVar("T")


def node_path(name: str) -> str:
    """One node."""
    return f"{NODES}/{quote(name, safe='')}"


def pod_path(namespace: str, name: str) -> str:
    """One pod."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def slice_path(name: str) -> str:
    """One ResourceSlice."""
    return f"{SLICES}/{quote(name, safe='')}"


def claim_path(namespace: str, name: str) -> str:
    """One ResourceClaim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


def template_path(namespace: str, name: str = "") -> str:
    """One ResourceClaimTemplate, or a namespace's."""
    own = f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaimtemplates"
    return f"{own}/{quote(name, safe='')}" if name else own


TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PAGE = 500

COMPONENT = "hami-plugin"
REMEMBERED = 256
MESSAGE_BYTES = 1024
NAME_CHARACTERS = 220  # 253 less a dot and 32 hexadecimal digits

Key = tuple[Subject, str, str, bool]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class EventLog:
    """Writes core/v1 Events in the name of a component, which runs on ``host``: a node, or a pod of its own."""

    def __init__(self, calls: ApiCalls, host: str, clock: Callable[[], str] = now, component: str = COMPONENT) -> None:
        self._calls = calls
        self._host = host
        self._component = component
        self._clock = clock
        self._written: OrderedDict[Key, tuple[str, int]] = OrderedDict()

    async def write(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        """The same fact about the same object counts up one Event, as long as it still exists there."""
        message = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
        key = (subject, reason, message, warning)
        known = self._written.pop(key, None)
        if known is not None:
            try:
                self._remember(key, await self._repeat(subject, *known))
            except ClusterError as error:
                if not error.not_found:
                    self._remember(key, known)
                    raise
            else:
                return
        self._remember(key, await self._create(subject, reason, message, warning=warning))

    async def _repeat(self, subject: Subject, name: str, count: int) -> tuple[str, int]:
        body = {"count": count + 1, "lastTimestamp": self._clock()}
        path = f"{_collection(subject)}/{quote(name, safe='')}"
        await self._calls.json(ApiCall(verb="patch", kind="events", path=path, name=name, body=body))
        return name, count + 1

    async def _create(self, subject: Subject, reason: str, message: str, *, warning: bool) -> tuple[str, int]:
        name = f"{subject.name[:NAME_CHARACTERS].rstrip('.-')}.{uuid.uuid4().hex}"
        at = self._clock()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(subject)},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": subject.kind,
                "name": subject.name,
                **({"namespace": subject.namespace} if subject.namespace else {}),
                **({"uid": subject.uid} if subject.uid else {}),
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        about = f"{reason} for {subject.kind} {subject.name}"
        await self._calls.json(ApiCall(verb="create", kind="events", path=_collection(subject), name=about, body=body))
        return name, 1

    def _remember(self, key: Key, written: tuple[str, int]) -> None:
        self._written[key] = written
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)


def _namespace(subject: Subject) -> str:
    return subject.namespace or "default"


def _collection(subject: Subject) -> str:
    return f"/api/v1/namespaces/{quote(_namespace(subject), safe='')}/events"


class ApiServer:
    """Implements ``hami_plugin.model.ports.NodeApi`` for one node. Made by ``connect``."""

    def __init__(self, node: str, calls: ApiCalls, timing: WatchTiming) -> None:
        self._node = node
        self._calls = calls
        self._timing = timing
        self._events = EventLog(calls, node)
        self._pods: Informer[PodView] | None = None

    @property
    def reachable(self) -> Watched[str]:
        return self._calls.health.problem

    @property
    def pods_outdated(self) -> str:
        """Why this node's known pods may be outdated; empty while they are current."""
        return self._calls.health.outdated("pods")

    async def patch_pod(self, pod: PodView, annotations: Annotations) -> PodView:
        body = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        call = ApiCall(verb="patch", kind="pods", path=pod_path(pod.namespace, pod.name), name=pod.key, body=body)
        return await self._calls.object(call, pod_view)

    async def patch_node(
        self, annotations: Annotations, *, labels: Annotations | None = None, resource_version: str = ""
    ) -> NodeView:
        more: dict[str, object] = {"labels": dict(labels)} if labels else {}
        if resource_version:
            more["resourceVersion"] = resource_version
        body = {"metadata": {"annotations": dict(annotations), **more}}
        return await self._calls.object(self._node_call("patch", body), node_view)

    async def patch_conditions(self, conditions: Sequence[Mapping[str, Any]]) -> None:
        """Merge conditions of this node by their types. It needs the right to patch nodes/status."""
        path, body = f"{node_path(self._node)}/status", {"status": {"conditions": list(conditions)}}
        call = ApiCall(verb="patch", kind="nodes/status", path=path, name=self._node, body=body, strategic=True)
        await self._calls.json(call)

    async def get_node(self) -> NodeView:
        return await self._calls.object(self._node_call("get"), node_view)

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        await self._events.write(subject, reason=reason, message=message, warning=warning)

    async def follow_pods(self, feed: PodFeed) -> NoReturn:
        topic = ListWatch(
            kind="pods",
            path=PODS,
            selector=f"spec.nodeName={self._node}",
            view=pod_view,
            feed=feed,
        )
        self._pods = Informer(self._calls, topic, self._timing)
        await self._pods.run()

    def refresh_pods(self) -> bool:
        """List and deliver this node's pods again. False if it is too early for that."""
        return self._pods is not None and self._pods.refresh()

    async def follow_node(self, deliver: Callable[[NodeView | None], None]) -> NoReturn:
        def replace(found: Sequence[NodeView]) -> None:
            deliver(found[0] if found else None)

        topic = ListWatch(
            kind="nodes",
            path=NODES,
            selector=f"metadata.name={self._node}",
            view=node_view,
            feed=Feed(replace=replace, update=deliver, delete=lambda _: deliver(None)),
            single=True,
        )
        await Informer(self._calls, topic, self._timing).run()

    async def minor_version(self) -> int:
        """Of Kubernetes 1; 0 for what is no version of it."""
        found = await self._calls.json(ApiCall(verb="get", kind="version", path="/version"))
        minor = re.match(r"[0-9]{1,4}", str(found.get("minor", "")))
        return int(minor[0]) if minor and found.get("major") == "1" else 0

    async def serves_claims(self) -> bool:
        """Whether it has resource.k8s.io/v1 with what a driver writes and reads."""
        try:
            found = await self._calls.json(ApiCall(verb="get", kind="resource.k8s.io", path=RESOURCES_OF_CLAIMS))
        except ClusterError as error:
            if error.not_found:
                return False
            raise
        listed = found.get("resources")
        names = {one.get("name") for one in listed if isinstance(one, Mapping)} if isinstance(listed, list) else set()
        return {"resourceslices", "resourceclaims"} <= names

    async def follow_slices(self, feed: Feed[T], view: Callable[[Json], T]) -> NoReturn:
        """Deliver the ResourceSlices of this node, of all drivers."""
        topic = ListWatch(
            kind="resourceslices", path=SLICES, selector=f"spec.nodeName={self._node}", view=view, feed=feed
        )
        await Informer(self._calls, topic, self._timing).run()

    async def create_slice(self, document: Json) -> Json:
        name = str(document["metadata"]["name"])
        return await self._calls.json(
            ApiCall(verb="create", kind="resourceslices", path=SLICES, name=name, body=document)
        )

    async def update_slice(self, document: Json) -> Json:
        """Replace the ResourceSlice of that name and version."""
        name = str(document["metadata"]["name"])
        return await self._calls.json(
            ApiCall(verb="update", kind="resourceslices", path=slice_path(name), name=name, body=document)
        )

    async def delete_slice(self, name: str, *, uid: str) -> None:
        """Delete the ResourceSlice, if it still has this UID."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._calls.json(
            ApiCall(verb="delete", kind="resourceslices", path=slice_path(name), name=name, body=body)
        )

    async def get_claim(self, namespace: str, name: str) -> Json:
        """A ResourceClaim as it is."""
        call = ApiCall(verb="get", kind="resourceclaims", path=claim_path(namespace, name), name=f"{namespace}/{name}")
        return await self._calls.json(call)

    def _node_call(self, verb: str, body: Mapping[str, object] | None = None) -> ApiCall:
        return ApiCall(verb=verb, kind="nodes", path=node_path(self._node), name=self._node, body=body)


class WholeCluster:
    """Implements ``hami_plugin.model.ports.ClusterApi``. Made by ``connect_wide``."""

    def __init__(self, calls: ApiCalls, timing: WatchTiming, events: EventLog) -> None:
        self._calls = calls
        self._timing = timing
        self._events = events

    @property
    def reachable(self) -> Watched[str]:
        return self._calls.health.problem

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        call = ApiCall(verb="get", kind="pods", path=pod_path(namespace, name), name=f"{namespace}/{name}")
        return await self._found(call, brief_pod_view)

    async def get_node(self, name: str) -> NodeView | None:
        return await self._found(ApiCall(verb="get", kind="nodes", path=node_path(name), name=name), node_view)

    async def patch_pod(self, pod: PodView, changes: PodPatch) -> PodView:
        labels = {"labels": dict(changes.labels)} if changes.labels else {}
        body = {"metadata": {**_present(pod), "annotations": dict(changes.annotations), **labels}}
        call = ApiCall(verb="patch", kind="pods", path=pod_path(pod.namespace, pod.name), name=pod.key, body=body)
        return await self._calls.object(call, partial(changed_pod_view, pod))

    async def patch_node(self, name: str, annotations: Annotations, *, resource_version: str) -> NodeView:
        body = {"metadata": {"annotations": dict(annotations), "resourceVersion": resource_version}}
        call = ApiCall(verb="patch", kind="nodes", path=node_path(name), name=name, body=body)
        return await self._calls.object(call, node_view)

    async def bind(self, pod: PodView, node: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, **_present(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"{pod_path(pod.namespace, pod.name)}/binding"
        await self._calls.json(ApiCall(verb="create", kind="pods/binding", path=path, name=pod.key, body=body))

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        await self._events.write(subject, reason=reason, message=message, warning=warning)

    async def follow_pods(self, feed: Feed[PodView]) -> NoReturn:
        # A list from before our own last decisions would give their shares away again after a restart.
        topic = ListWatch(
            kind="pods",
            path=PODS,
            selector=LIVING,
            view=brief_pod_view,
            shape=BriefPod,
            shaped=shaped_pod_view,
            feed=feed,
            present=True,
        )
        await Informer(self._calls, topic, self._timing).run()

    async def follow_nodes(self, feed: Feed[NodeView]) -> NoReturn:
        # The server's cache answers with all nodes at once, whatever the page: 60 MiB for 5,000 of them.
        topic = ListWatch(kind="nodes", path=NODES, view=node_view, shape=BriefNode, feed=feed, present=True)
        await Informer(self._calls, topic, self._timing).run()

    async def follow_quotas(self, feed: Feed[QuotaView]) -> NoReturn:
        topic = ListWatch(kind="resourcequotas", path=QUOTAS, view=quota_view, feed=feed)
        await Informer(self._calls, topic, self._timing).run()

    async def get_device_class(self, name: str) -> Json | None:
        path = f"{CLASSES}/{quote(name, safe='')}"
        return await self._found(ApiCall(verb="get", kind="deviceclasses", path=path, name=name), _as_it_is)

    async def get_claim_template(self, namespace: str, name: str) -> Json | None:
        return await self._found(self._template("get", namespace, name), _as_it_is)

    async def create_claim_template(self, document: Json) -> None:
        meta = document["metadata"]
        call = ApiCall(
            verb="create",
            kind="resourceclaimtemplates",
            path=template_path(meta["namespace"]),
            name=f"{meta['namespace']}/{meta['name']}",
            body=document,
        )
        await self._calls.json(call)

    async def patch_claim_template(self, namespace: str, name: str, annotations: Annotations) -> None:
        body = {"metadata": {"annotations": dict(annotations)}}
        await self._calls.json(self._template("patch", namespace, name, body))

    async def list_claim_templates(self, label: str, most: int) -> Sequence[Json]:
        found: list[Json] = []
        token = ""
        while len(found) < most:
            query = {"labelSelector": label, "limit": str(PAGE), **({"continue": token} if token else {})}
            page = await self._calls.json(
                ApiCall(verb="list", kind="resourceclaimtemplates", path=TEMPLATES, query=query)
            )
            found += [one for one in page.get("items") or () if isinstance(one, Mapping)]
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                break
        return found[:most]

    async def delete_claim_template(self, namespace: str, name: str, *, resource_version: str) -> None:
        conditions = {"resourceVersion": resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        await self._calls.json(self._template("delete", namespace, name, body))

    def _template(self, verb: str, namespace: str, name: str, body: Mapping[str, object] | None = None) -> ApiCall:
        path, both = template_path(namespace, name), f"{namespace}/{name}"
        return ApiCall(verb=verb, kind="resourceclaimtemplates", path=path, name=both, body=body)

    async def _found(self, call: ApiCall, view: Callable[[Json], T]) -> T | None:
        try:
            return await self._calls.object(call, view)
        except ClusterError as error:
            if error.not_found:
                return None
            raise


def _as_it_is(document: Json) -> Json:
    return document


def _present(pod: PodView) -> dict[str, str]:
    """What the pod must still be for a change of it to be taken. A view without a version asks for its UID alone."""
    version = {"resourceVersion": pod.resource_version} if pod.resource_version else {}
    return {"uid": pod.uid, **version}


@asynccontextmanager
async def connect(
    node: str,
    *,
    kubeconfig: Path | None = None,
    observer: Observer | None = None,
    timing: WatchTiming | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> AsyncIterator[ApiServer]:
    """The API server as ``node``'s daemon sees it. ``ConfigError`` without usable credentials; sends nothing yet."""
    timing = timing or WatchTiming()
    credentials = await find_credentials(kubeconfig, environ, service_account)
    async with open_api_calls(credentials, observer or NullObserver(), timing.deadline, CONNECTIONS) as calls:
        yield ApiServer(node, calls, timing)


@asynccontextmanager
async def connect_wide(
    name: str,
    *,
    host: str = "",
    kubeconfig: Path | None = None,
    observer: Observer | None = None,
    timing: WatchTiming | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> AsyncIterator[WholeCluster]:
    """The API server as the scheduler ``name`` sees it, which is the source of its Events. Sends nothing yet.

    ``ConfigError`` without usable credentials.
    """
    timing = timing or WatchTiming()
    credentials = await find_credentials(kubeconfig, environ, service_account)
    async with open_api_calls(credentials, observer or NullObserver(), timing.deadline, WIDE_CONNECTIONS) as calls:
        yield WholeCluster(calls, timing, EventLog(calls, host, component=name))


@asynccontextmanager
async def open_api_calls(
    credentials: Credentials, observer: Observer, deadline: float, connections: int
) -> AsyncIterator[ApiCalls]:
    """Calls to the API server, closed at the end. ``ConfigError`` for certificates that cannot be used."""
    try:
        calls = ApiCalls(credentials, observer=observer, deadline=deadline, connections=connections)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError([f"the certificates for the API server cannot be used: {error}"]) from error
    try:
        yield calls
    finally:
        calls.health.problem.close()
        await calls.close()
