"""Binding a pod to the node that was decided on: the node is taken, the pod is marked, and then assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_LOCK, BIND_PHASE, BIND_TIME, PHASE_ALLOCATING, PHASE_FAILED
from hami_plugin.scheduler.engine.assignment import TAKEN_BACK, Changes, binding
from hami_plugin.scheduler.engine.filtering import confirmed
from hami_plugin.scheduler.engine.ledger import entry
from hami_plugin.scheduler.engine.requests import Demand
from hami_plugin.scheduler.engine.survey import named_by
from hami_plugin.scheduler.extender.cache import Clock, NodeCache, PodCache
from hami_plugin.scheduler.extender.node_lock import PACE, TRIES, Hold, NodeLocks, OvertakenError, present, write
from hami_plugin.scheduler.extender.ports import Cluster
from hami_plugin.sdk import Family, LockRule

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
        nodes: NodeCache,
        now: Clock,
        *,
        pods: PodCache,
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
        asked = [family for family in named_by(pod, self._families) if _asks(family, pod)]
        if not asked:
            return await self._assign(replace(pod, resource_version=""), node)  # there is no decision to be kept
        decided = pod.annotations.get(ASSIGNED_NODE, "")
        if decided != node:
            raise HamiError(
                f"pod {pod.key} was given devices on node {decided or '(none)'}, and is to be bound to {node}",
                hint="the pod is scheduled again",
            )
        agents, ours = _locks(asked, pod)
        hold, mark = Hold(node=node, pod=pod, rules=(*agents, *ours)), None
        try:
            await self._locks.take(hold)
            until = asyncio.get_running_loop().time() + min(rule.expires_s for rule in hold.rules) / 2
            self._require_offered(asked, node)
            mark = binding(self._now())
            pod = await write(self._cluster, pod, mark, pace=self._pace)
            await self._confirm(pod, node, asked)
            await self._assign(pod, node, until=until)
        except UnsureError:
            raise  # the pod may be bound: its node needs the lock and the phase, and both expire
        except OvertakenError as error:
            await self._leave(hold, ours, error.found)
            raise
        except HamiError as error:
            await self._undo(hold, ours, pod, mark, lost=isinstance(error, LostError))
            raise
        await self._locks.release(hold, ours, alone=True)
        return None

    async def _confirm(self, pod: PodView, node: str, asked: Sequence[Family]) -> None:
        """``HamiError`` unless the pod can still have what was decided, beside all that are bound to the node.

        Another scheduler may have decided at the same time, and neither have seen the other. The node is ours now, so
        whatever was bound to it was so before the pod's version that we have just made; the watch is waited for until
        it has shown that version. Then nobody is missing.
        """
        if not await self._pods.shown_up_to(pod.resource_version, within=self._patience):
            raise HamiError(
                f"pod {pod.key}: the watch of pods is behind for {self._patience:g} s, so who else is on node {node} "
                "is not known",
                hint="the pod is scheduled again; if this lasts, see whether the API server answers watches",
            )
        self._require_offered(asked, node)
        own = entry(pod, self._families)
        assert own, "it names a node"
        others = [one for one in self._pods.ledger.on(node, without=pod.uid) if one.pod.node]
        why = confirmed(self._families, self._nodes.sites[node], own, others, order=self._order)
        if why:
            raise LostError(
                f"pod {pod.key} cannot have what was decided for it on node {node} any more: {why}",
                hint="another scheduler was faster; the pod is scheduled again",
            )

    def _require_offered(self, asked: Sequence[Family], node: str) -> None:
        """``HamiError`` when the node's daemon has fallen silent while the pod waited for the node."""
        site = self._nodes.sites.get(node)
        missing = [family.device_type for family in asked if site is None or family.device_type not in site.stocks]
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
            if problem.status and not problem.temporary:
                break  # a refusal that says all it can is not doubted
            found = await self._looked_at(pod, node, problem)
            if found is None:
                return None
            pod = replace(found, resource_version=found.resource_version if pod.resource_version else "")
            await asyncio.sleep(delay)
        raise problem

    async def _looked_at(self, pod: PodView, node: str, problem: ClusterError) -> PodView | None:
        """The pod that is to be bound as it is now; None when it is at the node."""
        try:
            return await present(self._cluster, pod, pace=self._pace)
        except OvertakenError as error:
            if error.found.node == node:
                return None
            raise
        except ClusterError as error:
            if error.not_found:
                raise
            raise UnsureError(
                f"{problem.message}, and whether it was bound is not known: {error.message}",
                hint="kube-scheduler tries again; a pod that is bound after all is served",
            ) from error

    async def _undo(
        self, hold: Hold, ours: Sequence[LockRule], pod: PodView, mark: Changes | None, *, lost: bool
    ) -> None:
        """The node is free for others, and no daemon hands anything out for the pod. A decision that was ``lost`` to
        another pod is taken back, or others would count it. What another scheduler has decided meanwhile stays.

        The pod is marked first: whoever else binds it has an older version of it then, and is refused. So nobody needs
        the lock any more.
        """
        if not mark and not hold.unsure:
            await self._locks.release(hold, hold.rules, alone=False)
            return
        change = {BIND_PHASE: PHASE_FAILED, **(TAKEN_BACK.annotations if lost else {})}
        if not mark:
            change |= {BIND_TIME: binding(self._now()).annotations[BIND_TIME]}  # else it may be as an attempt before
        marked = replace(pod, annotations={**pod.annotations, **(mark.annotations if mark else {})})
        try:
            await write(self._cluster, marked, Changes(annotations=change), pace=self._pace)
        except OvertakenError as error:
            log.info("pod not marked as failed to bind", pod=pod.key, problem=error.message)
            await self._leave(hold, ours, error.found)
        except ClusterError as error:
            log.info("pod not marked as failed to bind", pod=pod.key, problem=error.message)
            await self._locks.release(hold, hold.rules, alone=error.not_found)
        else:
            await self._locks.release(hold, hold.rules, alone=True)

    async def _leave(self, hold: Hold, ours: Sequence[LockRule], found: PodView) -> None:
        """Give up the locks that nobody else will release. Another scheduler that is about to bind the pod to the node
        needs all of them, and then its agent those that it releases itself.
        """
        there = (found.node or found.annotations.get(ASSIGNED_NODE)) == hold.node
        if not there or found.annotations.get(BIND_PHASE) != PHASE_ALLOCATING:
            await self._locks.release(hold, hold.rules, alone=True)
        elif found.node:
            await self._locks.release(hold, ours, alone=True)
        else:
            theirs = [rule for rule in hold.rules if rule.annotation in hold.taken_over]
            await self._locks.release(hold, theirs, alone=False)


def _locks(asked: Sequence[Family], pod: PodView) -> tuple[tuple[LockRule, ...], tuple[LockRule, ...]]:
    """The locks to take for these families: those that the nodes' agents release, and those that we do, once the pod
    is bound.

    HAMi's agents release none where only init containers ask, and families without a lock have no such agent.
    """
    running = [family for family in asked if family.rules.lock and _asks(family, pod, init=False)]
    agents = {lock.annotation: lock for family in running if (lock := family.rules.lock)}
    rest = [family.rules.lock or OWN for family in asked if family not in running]
    ours = {lock.annotation: lock for lock in rest if lock.annotation not in agents}
    return tuple(agents.values()), tuple(ours.values())


def _asks(family: Family, pod: PodView, *, init: bool = True) -> bool:
    policy = family.rules.policy
    containers = [one for one in pod.containers if init or not one.init]
    return policy is not None and any(isinstance(policy.request(one), Demand) for one in containers)


class UnsureError(HamiError):
    """Nobody knows whether the pod was bound."""


class LostError(HamiError):
    """What was decided for a pod is another pod's by now."""
