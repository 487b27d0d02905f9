"""A scheduler's API server without HTTP, for tests with thousands of pods; and the size of all that an object keeps."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Annotations, Subject
from hami_plugin.model.views import Feed, NodeView, PodPatch, PodView, QuotaView, node_view, pod_view, quota_view
from hami_plugin.process.concurrency import Watched
from hami_plugin.simulation.objects import RESOURCES, Filter, ObjectStore, StatusError


class MemoryCluster:
    """``hami_plugin.model.ports.ClusterApi`` straight over the objects. ``refuses`` gives errors by call."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.reachable = Watched("")
        self.refuses: dict[str, list[ClusterError]] = {}

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        return self._found("get_pod", "pods", namespace, name, pod_view)

    async def get_node(self, name: str) -> NodeView | None:
        return self._found("get_node", "nodes", "", name, node_view)

    async def patch_pod(self, pod: PodView, changes: PodPatch) -> PodView:
        present = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        meta = {**present, "annotations": dict(changes.annotations), "labels": dict(changes.labels)}
        key = ("pods", pod.namespace, pod.name)
        return pod_view(self._done("patch_pod", lambda: self.store.patch(key, {"metadata": meta})))

    async def patch_node(self, name: str, annotations: Annotations, *, resource_version: str) -> NodeView:
        meta = {"annotations": dict(annotations), "resourceVersion": resource_version}
        key = ("nodes", "", name)
        return node_view(self._done("patch_node", lambda: self.store.patch(key, {"metadata": meta})))

    async def bind(self, pod: PodView, node: str) -> None:
        version = pod.resource_version
        self._done("bind", lambda: self.store.bind(pod.namespace, pod.name, node, uid=pod.uid, version=version))

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        pass

    async def follow_pods(self, feed: Feed[PodView]) -> NoReturn:
        await self._follow("pods", pod_view, feed)

    async def follow_nodes(self, feed: Feed[NodeView]) -> NoReturn:
        await self._follow("nodes", node_view, feed)

    async def follow_quotas(self, feed: Feed[QuotaView]) -> NoReturn:
        await self._follow("resourcequotas", quota_view, feed)

    async def _follow(self, plural: str, view: Callable[[Any], Any], feed: Feed[Any]) -> NoReturn:
        seen = self.store.version.value
        feed.replace([view(item) for _, item in self.store.select(Filter(resource=RESOURCES[plural]))])
        while True:
            version = self.store.version.version
            for change in self.store.changes(seen):
                seen = change.version
                if change.resource != plural:
                    continue
                ended = change.after and (change.after.get("status") or {}).get("phase") in ("Succeeded", "Failed")
                if change.after and not ended:
                    feed.update(view(change.after))
                else:
                    feed.delete(view(change.after or change.before))
            await self.store.version.changed(version)

    def _found(self, call: str, plural: str, namespace: str, name: str, view: Callable[[Any], Any]) -> Any:
        try:
            return view(self._done(call, lambda: self.store.get(plural, namespace, name)))
        except ClusterError as error:
            if error.not_found:
                return None
            raise

    def _done(self, call: str, action: Callable[[], Any]) -> Any:
        if waiting := self.refuses.get(call):
            raise waiting.pop(0)
        try:
            return action()
        except StatusError as error:
            raise ClusterError(str(error), status=error.code) from error


_NO_STATE = (types.ModuleType, type, types.FunctionType, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def kept(root: object, *, without: Sequence[object] = ()) -> Mapping[str, int]:
    """How many things each container below an object holds, by the way to it: attributes, and kinds of what is inside.

    Nothing is named beforehand, so a container that is added tomorrow is counted too.
    """
    found: Counter[str] = Counter()
    seen = {id(one) for one in without}
    waiting: deque[tuple[str, Any]] = deque([(type(root).__name__, root)])
    while waiting:
        way, one = waiting.popleft()
        if id(one) in seen or isinstance(one, _NO_STATE):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping | list | set | deque | tuple | WeakValueDictionary):
            found[way] += len(one)
        waiting.extend((f"{way}{step}", below) for step, below in _below(one))
    return found


def _below(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, str | bytes | int | float | bool | None):
        return
    if isinstance(one, Mapping | WeakValueDictionary):
        for value in list(one.values()):
            yield "{}", value
    elif isinstance(one, list | set | deque | tuple | frozenset):
        for value in list(one):
            yield "[]", value
    elif isinstance(one, types.MethodType):
        yield "", one.__self__
    else:
        names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {**getattr(one, "__dict__", {}), **dict.fromkeys(names)}:
            yield f".{name}", getattr(one, name, None)
        if not names and not hasattr(one, "__dict__"):
            for value in gc.get_referents(one):
                yield "*", value
