"""The whole cluster at a real API server, as a scheduler sees it: every node, pod and quota."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from hami_plugin.aio import Watched
from hami_plugin.cluster.informer import Informer, ListWatch, WatchTiming
from hami_plugin.cluster.requests import ApiCalls
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Annotations, NullObserver, Observer, Subject
from hami_plugin.model.views import Feed, Json, NodeView, PodView, QuotaView, node_view, pod_view, quota_view
from hami_plugin.scheduler.engine.pod_info import PodPatch

from .client import NODES, PODS, calling, node_path, pod_path
from .credentials import SERVICE_ACCOUNT, find_credentials
from .events import EventLog
from .replies import Call

T = TypeVar("T")

QUOTAS = "/api/v1/resourcequotas"
CONNECTIONS = 64
"""Three watches; all others are for pods that are bound at the same time."""
LIVING = "status.phase!=Succeeded,status.phase!=Failed"


class WholeCluster:
    """Implements ``hami_plugin.scheduler.extender.ports.Cluster``. Made by ``connect_wide``."""

    def __init__(self, calls: ApiCalls, timing: WatchTiming, events: EventLog) -> None:
        self._calls = calls
        self._timing = timing
        self._events = events

    @property
    def reachable(self) -> Watched[str]:
        return self._calls.health.problem

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        call = Call(verb="get", kind="pods", path=pod_path(namespace, name), name=f"{namespace}/{name}")
        return await self._found(call, pod_view)

    async def get_node(self, name: str) -> NodeView | None:
        return await self._found(Call(verb="get", kind="nodes", path=node_path(name), name=name), node_view)

    async def patch_pod(self, pod: PodView, changes: PodPatch) -> PodView:
        labels = {"labels": dict(changes.labels)} if changes.labels else {}
        body = {"metadata": {**_present(pod), "annotations": dict(changes.annotations), **labels}}
        call = Call(verb="patch", kind="pods", path=pod_path(pod.namespace, pod.name), name=pod.key, body=body)
        return await self._calls.object(call, pod_view)

    async def patch_node(self, name: str, annotations: Annotations, *, resource_version: str) -> NodeView:
        body = {"metadata": {"annotations": dict(annotations), "resourceVersion": resource_version}}
        call = Call(verb="patch", kind="nodes", path=node_path(name), name=name, body=body)
        return await self._calls.object(call, node_view)

    async def bind(self, pod: PodView, node: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, **_present(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"{pod_path(pod.namespace, pod.name)}/binding"
        await self._calls.json(Call(verb="create", kind="pods/binding", path=path, name=pod.key, body=body))

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        await self._events.write(subject, reason=reason, message=message, warning=warning)

    async def follow_pods(self, feed: Feed[PodView]) -> NoReturn:
        # A list from before our own last decisions would give their shares away again after a restart.
        topic = ListWatch(kind="pods", path=PODS, selector=LIVING, view=pod_view, feed=feed, present=True)
        await Informer(self._calls, topic, self._timing).run()

    async def follow_nodes(self, feed: Feed[NodeView]) -> NoReturn:
        await Informer(self._calls, ListWatch(kind="nodes", path=NODES, view=node_view, feed=feed), self._timing).run()

    async def follow_quotas(self, feed: Feed[QuotaView]) -> NoReturn:
        topic = ListWatch(kind="resourcequotas", path=QUOTAS, view=quota_view, feed=feed)
        await Informer(self._calls, topic, self._timing).run()

    async def _found(self, call: Call, view: Callable[[Json], T]) -> T | None:
        try:
            return await self._calls.object(call, view)
        except ClusterError as error:
            if error.not_found:
                return None
            raise


def _present(pod: PodView) -> dict[str, str]:
    """What the pod must still be for a change of it to be taken. A view without a version asks for its UID alone."""
    version = {"resourceVersion": pod.resource_version} if pod.resource_version else {}
    return {"uid": pod.uid, **version}


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
    async with calling(credentials, observer or NullObserver(), timing.deadline, CONNECTIONS) as calls:
        yield WholeCluster(calls, timing, EventLog(calls, host, component=name))
