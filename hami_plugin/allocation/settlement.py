"""Behind the reply: record at the pod what was handed out, and release the node lock. Retried until it is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from hami_plugin.allocation.identity import record
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.errors import ClusterError, RefusalReason, RefusedError, WireError
from hami_plugin.model.ports import NodeApi
from hami_plugin.model.views import PodView, revision
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.process.concurrency import Backoff
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_FAILED, PHASE_SUCCESS
from hami_plugin.protocol.nodes import NodeLock, owned_by, parse_lock
from hami_plugin.protocol.pods import Question

log = logger(__name__)


RETRY = Backoff(first=0.02, cap=3.0)


async def release_lock(
    cluster: NodeApi, node: LiveNode, namespace: str, name: str, *, backoff: Backoff = RETRY
) -> bool:
    """Remove the node lock if this pod owns it, and only if nobody has changed the node since. True: it was removed."""
    return await _released(cluster, node, NODE_LOCK, lambda text: owned_by(text, namespace, name), backoff)


async def release_unnamed(cluster: NodeApi, node: LiveNode, key: str, *, backoff: Backoff = RETRY) -> bool:
    """Remove a lock that names no owner, once the one pod that waited under it is served. True: it was removed."""
    return await _released(cluster, node, key, bool, backoff)


async def _released(cluster: NodeApi, node: LiveNode, key: str, owned: Callable[[str], bool], backoff: Backoff) -> bool:
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

    MAX_GONE = 64

    def __init__(
        self,
        cluster: NodeApi,
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
        if len(self._gone) > self.MAX_GONE:
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
        """Whether the lock is older than the last version of the pod that is gone, so that no successor took it."""
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


class Settlement:
    """One task for each pod with something to record. Level-triggered: it compares, patches, and compares again.

    What is handed out within ``together`` seconds of one another is recorded together, up to ``MAX_PAUSES`` times as
    long: the kubelet asks for a pod's containers one after the other, and its next question should not wait for our own
    writes.
    """

    MAX_PAUSES = 5

    def __init__(
        self,
        cluster: NodeApi,
        *,
        pods: PodTable,
        ledger: Ledger,
        node: LiveNode,
        backoff: Backoff | None = None,
        together: float = 0.02,
    ) -> None:
        self.questions: Sequence[Question] = ()
        self.recorders: Sequence[Callable[[PodView], Mapping[str, str]]] = ()
        """Answer what else a pod's annotations are to say of what it has."""
        self._cluster = cluster
        self._pods = pods
        self._ledger = ledger
        self._node = node
        self._backoff = backoff or Backoff(first=0.2, cap=30.0)
        self._together = together
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self.failed: set[str] = set()
        """UIDs of pods whose decision has failed, before the API server has heard of it."""
        self.failures = 0
        """Moves with every pod whose decision fails."""
        self._unlocked: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether everything that was handed out is recorded."""
        return not self._tasks

    def note(self, uid: str) -> None:
        """Something was handed out to this pod."""
        self._again.add(uid)
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._settle(uid), name=f"settle {uid}")

    def fail(self, pod: PodView) -> None:
        """The pod's decision cannot be carried out: say so at the pod, and let the next pod have the lock."""
        self.failed.add(pod.uid)
        self.failures += 1
        self.note(pod.uid)

    def forget(self, uid: str) -> None:
        """The pod is gone or has ended. One that failed just now still gives back the lock, and is forgotten then."""
        if uid not in self._tasks:
            self.failed.discard(uid)
            self._unlocked.discard(uid)
            self._again.discard(uid)

    async def close(self) -> None:
        """Give up on what is not recorded yet; a restart finds it in the journal."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _settle(self, uid: str) -> None:
        try:
            await self._converge(uid)
        finally:
            del self._tasks[uid]  # at once, so that a note of this very moment starts another task
            pod = self._pods.get(uid)
            if pod is None or pod.terminal:
                self.forget(uid)

    async def _converge(self, uid: str) -> None:
        delays = self._backoff.delays()
        while uid in self._again:
            await self._pause(uid)
            pod = self._pods.get(uid)
            if pod is None:
                return
            try:
                await self._record(pod)
            except ClusterError as error:
                if error.not_found:
                    return
                log.warning("pod not recorded yet", pod=pod.key, problem=error.message, status=error.status)
                self._again.add(uid)
                await asyncio.sleep(max(next(delays), error.retry_after or 0.0))

    async def _pause(self, uid: str) -> None:
        """Until the kubelet asks no more for this pod's containers, or has done so for long enough."""
        for _ in range(self.MAX_PAUSES):
            self._again.discard(uid)
            await asyncio.sleep(self._together)
            if uid not in self._again:
                return
        self._again.discard(uid)

    async def _record(self, pod: PodView) -> None:
        keys = [held.key for held in self._ledger.held.of_pod(pod.uid)]
        wanted = record(pod, self.questions, self._ledger.held)
        failed = pod.uid in self.failed
        changes = dict(wanted.changes)
        if failed and not wanted.finished and pod.annotations.get(BIND_PHASE) not in (PHASE_FAILED, PHASE_SUCCESS):
            changes[BIND_PHASE] = PHASE_FAILED
        for recorder in self.recorders:
            changes |= {key: text for key, text in recorder(pod).items() if pod.annotations.get(key) != text}
        if changes:
            self._pods.patched(await self._cluster.patch_pod(pod, changes))
        self._ledger.settle(keys)
        if (wanted.finished or failed) and pod.uid not in self._unlocked:
            await release_lock(self._cluster, self._node, pod.namespace, pod.name)
            for key in sorted({one.lock for one in self.questions if one.lock and one.decision in pod.annotations}):
                await release_unnamed(self._cluster, self._node, key)
            self._unlocked.add(pod.uid)


class Refusals:
    """Makes the error and writes it to the pods as Events; the caller raises it."""

    def __init__(self, settlement: Settlement, events: EventRecorder) -> None:
        self._settlement = settlement
        self._events = events

    def refused(
        self,
        reason: RefusalReason,
        message: str,
        pods: Sequence[PodView],
        *,
        code: str = "FAILED_PRECONDITION",
        hint: str = "",
    ) -> RefusedError:
        """The error for the kubelet, and an Event at every pod that it is about."""
        refusal = RefusedError(reason, message, code=code, hint=hint)
        self._events.refused(pods, reason, str(refusal))
        return refusal

    def failed(
        self, reason: RefusalReason, message: str, pod: PodView, *, code: str = "FAILED_PRECONDITION", hint: str = ""
    ) -> RefusedError:
        """As ``refused``, for the pod that asked. Its decision cannot be carried out, so it is marked failed."""
        self._settlement.fail(pod)
        return self.refused(reason, message, (pod,), code=code, hint=hint)
