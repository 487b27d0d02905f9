"""The node lock: released by its owner's end only, and only the version of it that was looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError, WireError
from hami_plugin.log import logger
from hami_plugin.model.ports import Cluster
from hami_plugin.model.views import PodView, revision
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.live import LiveNode
from hami_plugin.node.pods import PodTable
from hami_plugin.policy.consumed import record
from hami_plugin.protocol.decisions import Question
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.lock import NodeLock, owned_by, parse_lock

log = logger(__name__)


RETRY = Backoff(first=0.02, cap=3.0)


async def release_lock(
    cluster: Cluster, node: LiveNode, namespace: str, name: str, *, backoff: Backoff = RETRY
) -> bool:
    """Remove the node lock if this pod owns it, and only the version of it that was looked at. True: it was removed."""
    return await _released(cluster, node, NODE_LOCK, lambda text: owned_by(text, namespace, name), backoff)


async def release_unnamed(cluster: Cluster, node: LiveNode, key: str, *, backoff: Backoff = RETRY) -> bool:
    """Remove a lock that names no owner, once the one pod that waited under it is served. True: it was removed."""
    return await _released(cluster, node, key, bool, backoff)


async def _released(cluster: Cluster, node: LiveNode, key: str, owned: Callable[[str], bool], backoff: Backoff) -> bool:
    """The server is asked only if the live node does not show the lock as ours: the view may lag behind the bind."""
    for attempt, delay in zip(range(8), backoff.delays(), strict=False):
        view = node.value
        if attempt or view is None or not owned(view.annotations.get(key, "")):
            view = await cluster.get_node()
            node.deliver(view)
        if not owned(view.annotations.get(key, "")):
            return False
        try:
            node.deliver(await cluster.patch_node({key: None}, resource_version=view.resource_version))
        except ClusterError as error:
            if not error.conflict:
                raise
            await asyncio.sleep(delay)
            continue
        return True
    raise ClusterError("the node changes too fast to release its lock", status=409)


def lock_age(node: LiveNode, now: datetime) -> float:
    """For how many seconds the node lock has been held, by the time in it; 0 while nobody holds it."""
    text = node.value.annotations.get(NODE_LOCK, "") if node.value else ""
    try:
        return max(0.0, (now - parse_lock(text).time).total_seconds()) if text else 0.0
    except WireError:
        return 0.0


class LockReaper:
    """Releases a node lock whose owner waits for nothing any more: it runs, has ended, is gone, or has its devices."""

    MOST_GONE = 64

    def __init__(
        self,
        cluster: Cluster,
        *,
        pods: PodTable,
        node: LiveNode,
        ledger: Ledger,
        questions: Sequence[Question],
        period: float = 5.0,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._node = node
        self._questions = questions
        self._ledger = ledger
        self._period = period
        self._orphaned = ""
        self._gone: dict[tuple[str, str], str] = {}

    def gone(self, pod: PodView) -> None:
        """A pod of this node was deleted or has ended. Its lock may be seen only after that."""
        self._gone.pop((pod.namespace, pod.name), None)
        self._gone[pod.namespace, pod.name] = pod.resource_version
        if len(self._gone) > self.MOST_GONE:
            del self._gone[next(iter(self._gone))]
        text = self._node.value.annotations.get(NODE_LOCK, "") if self._node.value else ""
        if owned_by(text, pod.namespace, pod.name):
            self._orphaned = text

    async def run(self) -> None:
        """Look at the lock from time to time, for ever. A lock that is stale at two looks in a row is released."""
        suspected = ""
        while True:
            await asyncio.sleep(self._period)
            text = self._stale()
            if text and text == suspected and await self._release(text):
                text = ""
            suspected = text

    def _stale(self) -> str:
        """The lock's text if its owner is done; empty while it may still be needed, or is not ours to judge."""
        text = self._node.value.annotations.get(NODE_LOCK, "") if self._node.value else ""
        try:
            lock = parse_lock(text) if text else None
        except WireError:
            return ""
        if lock is None or not lock.pod or not self._pods.changes.value:
            return ""
        pod = self._pods.named(lock.namespace, lock.pod)
        if pod is None:
            return text if text == self._orphaned or self._predates(lock) else ""
        done = record(pod, self._questions, self._ledger.held)
        return text if pod.phase != "Pending" or (done.finished and not done.changes) else ""

    def _predates(self, lock: NodeLock) -> bool:
        """Whether the node's lock is older than the last word of an owner that is gone: its own, not a successor's."""
        last = self._gone.get((lock.namespace, lock.pod), "")
        now = self._node.value.resource_version if self._node.value else ""
        return 0 < revision(now) < revision(last)

    async def _release(self, text: str) -> bool:
        lock = parse_lock(text)
        try:
            released = await release_lock(self._cluster, self._node, lock.namespace, lock.pod)
        except ClusterError as error:
            log.warning("stale node lock not released", owner=f"{lock.namespace}/{lock.pod}", problem=error.message)
            return False
        if released:
            log.info("stale node lock released", owner=f"{lock.namespace}/{lock.pod}")
        return True
