"""The ``Cluster`` port: this node and its pods, at a real API server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from hami_plugin.aio import Watched
from hami_plugin.cluster.credentials import SERVICE_ACCOUNT, Credentials, find_credentials
from hami_plugin.cluster.events import EventLog
from hami_plugin.cluster.informer import Informer, ListWatch, WatchTiming
from hami_plugin.cluster.replies import Call
from hami_plugin.cluster.requests import ApiCalls
from hami_plugin.errors import ConfigError
from hami_plugin.model.ports import Annotations, NullObserver, Observer, PodFeed, Subject
from hami_plugin.model.views import Feed, NodeView, PodView, node_view, pod_view

CONNECTIONS = 5
"""Two watches, and three calls at a time. A node's pods are admitted one after the other, and so are their patches."""
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"


def node_path(name: str) -> str:
    """One node."""
    return f"{NODES}/{quote(name, safe='')}"


def pod_path(namespace: str, name: str) -> str:
    """One pod."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


class ApiServer:
    """Implements ``hami_plugin.model.ports.Cluster`` for one node. Made by ``connect``."""

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
        call = Call(verb="patch", kind="pods", path=pod_path(pod.namespace, pod.name), name=pod.key, body=body)
        return await self._calls.object(call, pod_view)

    async def patch_node(self, annotations: Annotations, *, resource_version: str = "") -> NodeView:
        expected = {"resourceVersion": resource_version} if resource_version else {}
        body = {"metadata": {"annotations": dict(annotations), **expected}}
        return await self._calls.object(self._node_call("patch", body), node_view)

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

    def _node_call(self, verb: str, body: Mapping[str, object] | None = None) -> Call:
        return Call(verb=verb, kind="nodes", path=node_path(self._node), name=self._node, body=body)


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
    async with calling(credentials, observer or NullObserver(), timing.deadline, CONNECTIONS) as calls:
        yield ApiServer(node, calls, timing)


@asynccontextmanager
async def calling(
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
