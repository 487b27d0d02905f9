"""Binding a pod to the node that was decided on: the node is taken, the pod is marked, and then assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.policy.demand import Demand
from hami_plugin.scheduler.locks import Hold, NodeLocks
from hami_plugin.scheduler.nodes import Clock, Nodes
from hami_plugin.scheduler.pods import Pods
from hami_plugin.scheduler.ports import Cluster
from hami_plugin.scheduler.retries import PACE, TRIES, repeated
from hami_plugin.scheduling.decisions import TAKEN_BACK, Changes, binding
from hami_plugin.scheduling.filtering import confirmed
from hami_plugin.scheduling.ledger import entry
from hami_plugin.vendor import Family, LockRule
from hami_plugin.wire.keys import ASSIGNED_NODE, BIND_LOCK, BIND_PHASE, PHASE_FAILED

log = logger(__name__)

OWN = LockRule(annotation=BIND_LOCK, expires_s=60.0)
"""The lock of pods whose families have none: two schedulers would bind to the same device otherwise."""


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
        pods: Pods,
        order: str,
        pace: Backoff = PACE,
        patience: float = 5.0,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._order = order
        self._patience = patience
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
        agents, ours = self._rules(pod)
        hold, marked = Hold(node=node, pod=pod, rules=(*agents, *ours)), False
        try:
            await self._locks.take(hold)
            until = asyncio.get_running_loop().time() + min(rule.expires_s for rule in hold.rules) / 2
            self._require_offered(pod, node)
            marked = True
            written = await repeated(lambda: self._cluster.patch_pod(pod, binding(self._now())), pace=self._pace)
            await self._confirm(written, node)
            await self._assign(pod, node, until=until)
        except UnsureError:
            raise  # the pod may be bound: its node needs the lock and the phase, and both expire
        except HamiError as error:
            await self._undo(hold, marked=marked, lost=isinstance(error, LostError))
            raise
        if ours:
            await self._locks.release(replace(hold, rules=ours))
        return None

    async def _confirm(self, pod: PodView, node: str) -> None:
        """``HamiError`` unless the pod can still have what was decided, beside all that are bound to the node.

        Another scheduler may have decided at the same time, and neither have seen the other. The node is ours now, so
        whatever was bound to it was so before the pod's version that we have just made; the watch is waited for until
        it has shown that version. Then nobody is missing.
        """
        decided = pod.annotations.get(ASSIGNED_NODE, "")
        if decided != node:
            raise HamiError(
                f"pod {pod.key} was given devices on node {decided or '(none)'} while it was to be bound to {node}",
                hint="the pod is scheduled again",
            )
        if not await self._pods.shown_up_to(pod.resource_version, within=self._patience):
            raise HamiError(
                f"pod {pod.key}: the watch of pods is behind for {self._patience:g} s, so who else is on node {node} "
                "is not known",
                hint="the pod is scheduled again; if this lasts, see whether the API server answers watches",
            )
        self._require_offered(pod, node)
        own = entry(pod, self._families)
        assert own, "it names a node"
        others = [one for one in self._pods.ledger.on(node, without=pod.uid) if one.pod.node]
        why = confirmed(self._families, self._nodes.sites[node], own, others, order=self._order)
        if why:
            raise LostError(
                f"pod {pod.key} cannot have what was decided for it on node {node} any more: {why}",
                hint="another scheduler was faster; the pod is scheduled again",
            )

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

    async def _assign(self, pod: PodView, node: str, *, until: float = float("inf")) -> None:
        """POST the Binding. One without an answer may have been taken all the same, so the pod is looked at.

        ``until`` is the loop's time after which the node may become another's.
        """
        for _try, delay in zip(range(TRIES), self._pace.delays(), strict=False):
            if asyncio.get_running_loop().time() > until:
                raise HamiError(f"pod {pod.key}: binding took so long that node {node} may be another pod's by now")
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

    async def _undo(self, hold: Hold, *, marked: bool, lost: bool) -> None:
        """The node is free for others, and no daemon hands anything out for the pod. A decision that was ``lost`` to
        another pod is taken back, or others would count it.
        """
        if marked or hold.tried:
            await self._locks.release(hold)
        if not marked:
            return
        try:
            gone = TAKEN_BACK.annotations if lost else {}
            await self._cluster.patch_pod(hold.pod, Changes(annotations={BIND_PHASE: PHASE_FAILED, **gone}))
        except ClusterError as error:
            log.info("pod not marked as failed to bind", pod=hold.pod.key, problem=error.message)

    def _asking(self, pod: PodView) -> bool:
        return any(self._asks(family, pod) for family in self._families)

    def _rules(self, pod: PodView) -> tuple[tuple[LockRule, ...], tuple[LockRule, ...]]:
        """The locks to take: those that the nodes' agents release, and those that we do, once the pod is bound.

        HAMi's agents release none where only init containers ask, and families without a lock have no such agent.
        """
        asked = [family for family in self._families if self._asks(family, pod)]
        running = [family for family in asked if family.rules.lock and self._asks(family, pod, init=False)]
        agents = {lock.annotation: lock for family in running if (lock := family.rules.lock)}
        rest = [family.rules.lock or OWN for family in asked if family not in running]
        ours = {lock.annotation: lock for lock in rest if lock.annotation not in agents}
        return tuple(agents.values()), tuple(ours.values())

    @staticmethod
    def _asks(family: Family, pod: PodView, *, init: bool = True) -> bool:
        policy = family.rules.policy
        containers = [one for one in pod.containers if init or not one.init]
        return policy is not None and any(isinstance(policy.request(one), Demand) for one in containers)


class UnsureError(HamiError):
    """Nobody knows whether the pod was bound."""


class LostError(HamiError):
    """What was decided for a pod is another pod's by now."""
