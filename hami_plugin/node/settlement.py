"""Behind the reply: record at the pod what was handed out, and release the node lock. Retried until it is true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.model.ports import Cluster
from hami_plugin.model.views import PodView
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.live import LiveNode
from hami_plugin.node.lock import release_lock, release_unnamed
from hami_plugin.node.pods import PodTable
from hami_plugin.policy.consumed import record
from hami_plugin.protocol.decisions import Question
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS

log = logger(__name__)


class Settlement:
    """One task for each pod with something to record. Level-triggered: it compares, patches, and compares again.

    What is handed out within ``together`` seconds is recorded together: the kubelet asks for a pod's containers one
    after the other, and its next question should not wait for our own writes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        pods: PodTable,
        ledger: Ledger,
        node: LiveNode,
        backoff: Backoff | None = None,
        together: float = 0.02,
    ) -> None:
        self.questions: Sequence[Question] = ()
        self._cluster = cluster
        self._pods = pods
        self._ledger = ledger
        self._node = node
        self._backoff = backoff or Backoff(first=0.2, cap=30.0)
        self._together = together
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._failed: set[str] = set()
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
        self._failed.add(pod.uid)
        self.note(pod.uid)

    def failed(self, uid: str) -> bool:
        """Whether the pod's decision has failed. True before the API server has heard of it."""
        return uid in self._failed

    def forget(self, uid: str) -> None:
        """The pod is gone or has ended. One that failed just now still gives back the lock, and is forgotten then."""
        if uid not in self._tasks:
            self._failed.discard(uid)
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
            await asyncio.sleep(self._together)
            self._again.discard(uid)
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

    async def _record(self, pod: PodView) -> None:
        keys = [held.key for held in self._ledger.of_pod(pod.uid)]
        wanted = record(pod, self.questions, self._ledger.held)
        failed = pod.uid in self._failed
        changes = dict(wanted.changes)
        if failed and not wanted.finished and pod.annotations.get(BIND_PHASE) not in (PHASE_FAILED, PHASE_SUCCESS):
            changes[BIND_PHASE] = PHASE_FAILED
        if changes:
            self._pods.patched(await self._cluster.patch_pod(pod, changes))
        self._ledger.settle(keys)
        if (wanted.finished or failed) and pod.uid not in self._unlocked:
            await release_lock(self._cluster, self._node, pod.namespace, pod.name)
            for key in sorted({one.lock for one in self.questions if one.lock and one.decision in pod.annotations}):
                await release_unnamed(self._cluster, self._node, key)
            self._unlocked.add(pod.uid)
