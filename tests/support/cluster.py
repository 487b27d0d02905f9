"""An API server in memory: versions, conflicts, a watch that can lag, and failures on demand."""

import asyncio
from collections import deque
from dataclasses import replace

from hami_plugin.allocation.pods import PodTable
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.process.concurrency import Watched

from .builders import NODE


class FakeCluster:
    """What a ``Cluster`` reads and writes. What it is told to do itself (``add``, ``remove``, …) reaches its readers at
    once, or by ``catch_up`` while ``lagging``."""

    def __init__(self) -> None:
        self.reachable: Watched[str] = Watched("")
        self.pods_outdated = ""
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[dict[str, str | None]] = []
        self.events: list[tuple[str, str, str]] = []
        self.down = False
        self.latency = 0.0
        self.lagging = False
        self._failures: dict[str, deque[ClusterError]] = {}
        self._before: dict[str, list] = {}
        self._version = 100
        self._node: NodeView | None = NodeView(name=NODE, uid="node-uid", resource_version="100")
        self._pods: dict[str, PodView] = {}
        self._table: PodTable | None = None
        self._live: LiveNode | None = None
        self._news: list = []

    # What a test does to it.

    def attach(self, table: PodTable | None = None, live: LiveNode | None = None) -> None:
        """Begin to deliver, with a first list."""
        self._table, self._live = table, live
        if table:
            table.feed.replace(list(self._pods.values()))
        if live:
            live.deliver(self._node)

    def fail(self, call: str, *errors: ClusterError) -> None:
        """The next calls fail so; ``call`` is a verb and a kind, such as ``patch pods``."""
        self._failures.setdefault(call, deque()).extend(errors)

    def before(self, call: str, action) -> None:
        """Do something just before the next such call takes effect."""
        self._before.setdefault(call, []).append(action)

    def add(self, pod: PodView) -> PodView:
        pod = replace(pod, resource_version=self._next())
        self._pods[pod.key] = pod
        self._tell(lambda: self._table and self._table.feed.update(pod))
        return pod

    def change(self, pod: PodView, **changes) -> PodView:
        return self.add(replace(self._pods[pod.key], **changes))

    def remove(self, pod: PodView) -> None:
        gone = self._pods.pop(pod.key)
        self._tell(lambda: self._table and self._table.feed.delete(gone))

    def annotate(self, **annotations: str | None) -> None:
        """Change the node as somebody else would. Double underscores stand for what a keyword cannot hold."""
        assert self._node is not None
        self._store_node(replace(self._node, annotations=_merged(self._node.annotations, annotations)))

    def set_node(self, node: NodeView | None) -> None:
        self._store_node(node)

    def catch_up(self) -> None:
        self.lagging = False
        news, self._news = self._news, []
        for deliver in news:
            deliver()

    def pod(self, pod: PodView) -> PodView:
        return self._pods[pod.key]

    @property
    def node(self) -> NodeView:
        assert self._node is not None
        return self._node

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.calls if call[0] == "patch"]

    # The Cluster port.

    async def patch_pod(self, pod: PodView, annotations) -> PodView:
        await self._call("patch", "pods")
        present = self._pods.get(pod.key)
        if present is None:
            raise ClusterError("pod not found", status=404)
        if present.uid != pod.uid:
            raise ClusterError("uid is immutable", status=422)
        self.bodies.append(dict(annotations))
        changed = replace(present, annotations=_merged(present.annotations, annotations), resource_version=self._next())
        self._pods[pod.key] = changed
        self._tell(lambda: self._table and self._table.feed.update(changed))
        return changed

    async def patch_node(self, annotations, *, labels=None, resource_version: str = "") -> NodeView:
        await self._call("patch", "nodes")
        if self._node is None:
            raise ClusterError("node not found", status=404)
        if resource_version and resource_version != self._node.resource_version:
            raise ClusterError("the object has been modified", status=409)
        self.bodies.append(dict(annotations))
        merged = _merged(self._node.annotations, annotations)
        self._store_node(replace(self._node, annotations=merged, labels=_merged(self._node.labels, labels or {})))
        return self._node

    async def get_node(self) -> NodeView:
        await self._call("get", "nodes")
        if self._node is None:
            raise ClusterError("node not found", status=404)
        return self._node

    async def create_event(self, subject, *, reason: str, message: str, warning: bool) -> None:
        await self._call("create", "events")
        self.events.append((subject.name, str(reason), message))

    async def _call(self, verb: str, kind: str) -> None:
        self.calls.append((verb, kind))
        await asyncio.sleep(self.latency)
        for action in self._before.pop(f"{verb} {kind}", []):
            action()
        failures = self._failures.get(f"{verb} {kind}")
        if failures:
            raise failures.popleft()
        if self.down:
            raise ClusterError("connection refused")

    def _store_node(self, node: NodeView | None) -> None:
        self._node = node and replace(node, resource_version=self._next())
        shown = self._node
        self._tell(lambda: self._live and self._live.deliver(shown))

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def _tell(self, deliver) -> None:
        if self.lagging:
            self._news.append(deliver)
        else:
            deliver()


def _merged(annotations, changes) -> dict[str, str]:
    merged = {**annotations, **changes}
    return {key: value for key, value in merged.items() if value is not None}
