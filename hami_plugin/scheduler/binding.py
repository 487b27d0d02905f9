"""Binding a pod to the node that was decided on: the node is taken, the pod is marked, and then assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.policy.demand import Demand
from hami_plugin.scheduler.locks import Hold, NodeLocks
from hami_plugin.scheduler.nodes import Clock, Nodes
from hami_plugin.scheduler.ports import Cluster
from hami_plugin.scheduler.retries import PACE, TRIES, repeated
from hami_plugin.scheduling.decisions import Changes, binding
from hami_plugin.vendor import Family, LockRule
from hami_plugin.wire.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED

log = logger(__name__)


class Binder:
    """Binds pods. What it began it finishes or undoes, unless nobody knows how far the API server came."""

    def __init__(
        self,
        cluster: Cluster,
        families: Sequence[Family],
        locks: NodeLocks,
        nodes: Nodes,
        now: Clock,
        *,
        pace: Backoff = PACE,
    ) -> None:
        self._cluster = cluster
        self._families = tuple(families)
        self._locks = locks
        self._nodes = nodes
        self._now = now
        self._pace = pace

    async def bind(self, pod: PodView, node: str) -> None:
        """Bind the pod. ``HamiError`` with the reason when it is not bound, or not known to be."""
        if pod.node == node:
            return None  # asked once more: its daemon may have served it already
        if not self._asking(pod):
            return await self._assign(pod, node)
        decided = pod.annotations.get(ASSIGNED_NODE, "")
        if decided != node:
            raise HamiError(
                f"pod {pod.key} was given devices on node {decided or '(none)'}, and is to be bound to {node}",
                hint="the pod is scheduled again",
            )
        hold, marked = Hold(node=node, pod=pod, rules=self._rules(pod)), False
        try:
            await self._locks.take(hold)
            self._require_offered(pod, node)
            marked = True
            await repeated(lambda: self._cluster.patch_pod(pod, binding(self._now())), pace=self._pace)
            await self._assign(pod, node)
        except UnsureError:
            raise  # the pod may be bound: its node needs the lock and the phase, and both expire
        except HamiError:
            await self._undo(hold, marked=marked)
            raise
        return None

    def _require_offered(self, pod: PodView, node: str) -> None:
        """``HamiError`` when the node's daemon has fallen silent while the pod waited for the node."""
        site = self._nodes.sites.get(node)
        words = [family.word for family in self._families if self._asks(family, pod)]
        missing = [word for word in words if site is None or word not in site.stocks]
        if missing:
            raise HamiError(
                f"node {node} no longer offers {', '.join(missing)} devices: its daemon fell silent, or is restarting",
                hint="the pod is scheduled again",
            )

    async def _assign(self, pod: PodView, node: str) -> None:
        """POST the Binding. One without an answer may have been taken all the same, so the pod is looked at."""
        for _try, delay in zip(range(TRIES), self._pace.delays(), strict=False):
            try:
                return await self._cluster.bind(pod, node)
            except ClusterError as error:
                problem = error
            there = await self._whereabouts(pod, problem)
            if there == node:
                return None
            if there or not problem.temporary:
                break
            await asyncio.sleep(delay)
        raise problem

    async def _whereabouts(self, pod: PodView, problem: ClusterError) -> str:
        """The node that the pod is bound to now. A refusal that says all it can is not doubted."""
        if problem.status and not problem.temporary:
            return ""
        try:
            found = await repeated(lambda: self._cluster.get_pod(pod.namespace, pod.name), pace=self._pace)
        except ClusterError as error:
            raise UnsureError(
                f"{problem.message}, and whether it was bound is not known: {error.message}",
                hint="kube-scheduler tries again; a pod that is bound after all is served",
            ) from error
        if found is None or found.uid != pod.uid:
            raise HamiError(f"pod {pod.key} is gone", hint="nothing to do")
        return found.node

    async def _undo(self, hold: Hold, *, marked: bool) -> None:
        """The node is free for others, and no daemon hands anything out for the pod."""
        if marked or hold.written:
            await self._locks.release(hold)
        if not marked:
            return
        try:
            await self._cluster.patch_pod(hold.pod, Changes(annotations={BIND_PHASE: PHASE_FAILED}))
        except ClusterError as error:
            log.info("pod not marked as failed to bind", pod=hold.pod.key, problem=error.message)

    def _asking(self, pod: PodView) -> bool:
        return any(self._asks(family, pod) for family in self._families)

    def _rules(self, pod: PodView) -> tuple[LockRule, ...]:
        """The locks to take. Families that only init containers ask for take none: HAMi's agents release none then."""
        found = {
            family.lock.annotation: family.lock
            for family in self._families
            if family.lock and self._asks(family, pod, init=False)
        }
        return tuple(found.values())

    @staticmethod
    def _asks(family: Family, pod: PodView, *, init: bool = True) -> bool:
        policy = family.policy
        containers = [one for one in pod.containers if init or not one.init]
        return policy is not None and any(isinstance(policy.request(one), Demand) for one in containers)


class UnsureError(HamiError):
    """Nobody knows whether the pod was bound."""
