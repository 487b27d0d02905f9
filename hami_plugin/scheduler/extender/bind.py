"""Binding a pod to the node that was decided on: the node is locked, the pod marked, and then assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar
from weakref import WeakValueDictionary

from hami_plugin.errors import ClusterError, HamiError, WireError
from hami_plugin.model.ports import ClusterApi
from hami_plugin.model.views import ContainerView, NodeView, PodPatch, PodView
from hami_plugin.process.concurrency import Backoff
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import (
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_LOCK,
    BIND_PHASE,
    BIND_TIME,
    PHASE_ALLOCATING,
    PHASE_FAILED,
)
from hami_plugin.protocol.nodes import NodeLock, owned_by, parse_lock, render_lock
from hami_plugin.scheduler.engine.devices import Demand
from hami_plugin.scheduler.engine.node_info import UNASSIGNED, bind_phase, conflict, pod_info, requested_families
from hami_plugin.scheduler.extender.cache import Clock, NodeCache, PendingDecision, SchedulerCache
from hami_plugin.sdk import Family, LockRule


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLock:
    """Yes: write this text, if nobody has changed the node meanwhile."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHeld:
    """The pod has the node already, for a family that shares the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedByAnother:
    """No. Another pod has it, and it is not known to be stuck."""

    why: str


def claim(
    text: str, pod: PodView, *, now: datetime, expires: timedelta, gone: bool = False, named: bool = True
) -> TakeLock | LockHeld | LockedByAnother:
    """Read the lock's ``text``, empty for none. ``gone``: the pod that it names does not exist any more.

    A lock that nobody can read is nobody's to break. ``named`` is false for locks that name no pod.
    """
    owner = NodeLock(time=now, namespace=pod.namespace, pod=pod.name) if named else NodeLock(time=now)
    mine = TakeLock(text=render_lock(owner))
    if not text:
        return mine
    if named and owned_by(text, pod.namespace, pod.name):
        return LockHeld()
    try:
        lock = parse_lock(text)
    except WireError as error:
        return LockedByAnother(why=f"{error}; remove the annotation if no pod is being bound")
    if (gone and lock.pod) or now - lock.time > expires:
        return mine
    holder = f"{lock.namespace}/{lock.pod}" if lock.pod else "an unnamed pod"
    return LockedByAnother(why=f"locked for {holder} within {expires.total_seconds():.0f} s")


T = TypeVar("T")

PACE = Backoff(first=0.05, cap=1.0)
TRIES = 4

_DECISION = (ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME)


class OvertakenError(ClusterError):
    """Another scheduler has written its decision to the pod, or bound it. ``found`` is the pod as it is now."""

    def __init__(self, found: PodView) -> None:
        node, phase = found.node or found.annotations.get(ASSIGNED_NODE, ""), found.annotations.get(BIND_PHASE, "")
        step = "has bound it to" if found.node else f"has decided for it (phase {phase or 'none yet'}):"
        super().__init__(
            f"pod {found.key}: another scheduler {step} node {node or '(none)'}",
            status=409,
            hint="nothing of that is changed; the pod is scheduled again if it waits",
        )
        self.found = found


async def retry(call: Callable[[], Awaitable[T]], *, pace: Backoff = PACE) -> T:
    """Call until it succeeds, a few times at most. ``ClusterError`` of the last time, or of one that no time mends."""
    for _try, delay in zip(range(TRIES - 1), pace.delays(), strict=False):
        try:
            return await call()
        except ClusterError as error:
            if not error.temporary:
                raise
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    return await call()


async def write(cluster: ClusterApi, pod: PodView, changes: PodPatch, *, pace: Backoff = PACE) -> PodView:
    """Write a decision, or a step of it, to the pod as it was when that was decided. ``ClusterError`` if it fails.

    The API server takes it in this version of the pod only. A newer one is read: where the decision is the same, as
    after a change of the pod's conditions, that version is written to; else it is ``OvertakenError``.
    """
    sure = True
    for last, delay in zip((*(False,) * (TRIES - 1), True), pace.delays(), strict=False):
        try:
            return await cluster.patch_pod(pod, changes)
        except ClusterError as error:
            if last or not error.temporary:
                raise
            sure = sure and error.conflict
            if error.conflict:
                pod = await current_pod(cluster, pod, changes, sure=sure, pace=pace)
                if not sure and _has(pod, changes):
                    return pod
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    raise AssertionError("the last try answers or raises")


async def current_pod(
    cluster: ClusterApi, pod: PodView, changes: PodPatch | None = None, *, sure: bool = True, pace: Backoff = PACE
) -> PodView:
    """The pod's present version. ``OvertakenError`` when somebody else has decided on it since ``pod`` was read.

    When it is not ``sure`` that our ``changes`` were not taken, a pod that has them is no other's.
    """
    found = await retry(lambda: cluster.get_pod(pod.namespace, pod.name), pace=pace)
    if found is None or found.uid != pod.uid:
        raise ClusterError(f"pod {pod.key} is gone", status=404, hint="nothing to do")
    keys = (*_DECISION, *(changes.annotations if changes else ()))
    same = found.node == pod.node and all(found.annotations.get(key) == pod.annotations.get(key) for key in keys)
    ours = not sure and changes is not None and found.node == pod.node and _has(found, changes)
    if not same and not ours:
        raise OvertakenError(found)
    return found


def _has(pod: PodView, changes: PodPatch) -> bool:
    return all(pod.annotations.get(key) == text for key, text in changes.annotations.items())


log = logger(__name__)

RECHECK_S = 1.0
"""After so many seconds without news of a node that is taken, its holder is asked for."""


@dataclass(slots=True, kw_only=True)
class HeldLocks:
    """What one attempt to bind a pod has of a node's locks: texts by annotation.

    ``written``: the API server has taken it from this attempt. ``unsure``: it was sent, and no answer came.
    ``taken_over``: what stood there before, which another attempt wrote for the same pod, in whatever process.
    """

    node: str
    pod: PodView
    rules: Sequence[LockRule]
    written: dict[str, str] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)
    taken_over: dict[str, str] = field(default_factory=dict)

    @property
    def tried(self) -> bool:
        """Whether a lock may be there by this attempt."""
        return bool(self.written or self.unsure)

    def given_back(self, rule: LockRule, text: str, *, alone: bool) -> str | None:
        """What replaces the lock's present ``text`` when the attempt gives it up; None for nothing.

        Only a text that this attempt wrote is its own: no attempt writes the text that it finds, so two attempts that
        bind one pod differ at least in the second. What was sent without an answer may still be another's.
        """
        key = rule.annotation
        if text and text == self.written.get(key):
            return None if alone else self.taken_over.get(key)
        return None if alone and rule.named and text and text == self.unsure.get(key) else text


class NodeLocks:
    """The locks of all nodes. Pods of this process stand in line for a node, so that none is passed over."""

    def __init__(
        self, cluster: ClusterApi, nodes: NodeCache, now: Clock, *, timeout: float, pace: Backoff = PACE
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._now = now
        self._timeout = timeout
        self._pace = pace
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, hold: HeldLocks) -> None:
        """Take the node. ``HamiError`` when it stays another pod's for too long, ``ClusterError`` from the server."""
        if not hold.rules:
            return
        line = self._lines.setdefault(hold.node, asyncio.Lock())
        attempt = _Attempt(self._cluster, self._nodes, self._now, self._pace, hold)
        try:
            async with asyncio.timeout(self._timeout), line:
                await attempt.run()
        except TimeoutError:
            raise HamiError(
                f"node {hold.node}: {attempt.why}, for {self._timeout:g} s",
                hint="the pod is scheduled again; if this lasts, see whether the node's daemon runs",
            ) from None

    async def release(self, hold: HeldLocks, rules: Sequence[LockRule], *, alone: bool) -> None:
        """Give back what this attempt holds by these rules, and nothing else. What fails expires, and is logged.

        ``alone``: no other attempt can bind the pod any more. Otherwise the lock that one of them may rely on is put
        back, and released by it, or expires.
        """
        if not rules or not hold.tried:
            return
        try:
            await self._release(hold, rules, alone=alone)
        except ClusterError as error:
            log.warning("node lock not released", node=hold.node, pod=hold.pod.key, problem=error.message)

    async def _release(self, hold: HeldLocks, rules: Sequence[LockRule], *, alone: bool) -> None:
        for _try, delay in zip(range(TRIES), self._pace.delays(), strict=False):
            node = await self._cluster.get_node(hold.node)
            if node is None:
                return
            self._nodes.answered(node)
            texts = {rule: node.annotations.get(rule.annotation, "") for rule in rules}
            after = {rule.annotation: hold.given_back(rule, text, alone=alone) for rule, text in texts.items()}
            changes = {
                rule.annotation: after[rule.annotation]
                for rule, text in texts.items()
                if after[rule.annotation] != text
            }
            if not changes:
                return
            try:
                released = await self._cluster.patch_node(node.name, changes, resource_version=node.resource_version)
            except ClusterError as error:
                if not error.conflict:
                    raise
                await asyncio.sleep(delay)
                continue
            self._nodes.answered(released)
            return
        raise ClusterError(f"node {hold.node} changes too fast to release its lock", status=409)


class _Attempt:
    """One pod's attempt to take one node. ``why`` it has not come to it yet."""

    def __init__(self, cluster: ClusterApi, nodes: NodeCache, now: Clock, pace: Backoff, hold: HeldLocks) -> None:
        self.why = "other pods are being bound to it"
        self._cluster = cluster
        self._nodes = nodes
        self._now = now
        self._delays = pace.delays()
        self._hold = hold
        self._gone: set[str] = set()

    async def run(self) -> None:
        while True:
            live = self._nodes.live(self._hold.node)
            version, node = live.version, live.value
            if node is None:
                node = await self._fresh()
            wanted, busy = self._claims(node)
            if busy:
                if live.closed:  # the watch does not know the node yet
                    await asyncio.sleep(next(self._delays))
                if not await live.changed(version, RECHECK_S):
                    await self._read_holders(node)
                continue
            if not wanted or await self._written(node, wanted):
                return

    def _claims(self, node: NodeView) -> tuple[dict[str, str], bool]:
        """What is to be written, and whether the node has to be waited for."""
        wanted: dict[str, str] = {}
        for rule in self._hold.rules:
            text = node.annotations.get(rule.annotation, "")
            if text and text == self._hold.written.get(rule.annotation):
                continue
            now = self._now()
            answer = claim(
                text,
                self._hold.pod,
                now=now,
                expires=timedelta(seconds=rule.expires_s),
                gone=text in self._gone,
                named=rule.named,
            )
            if isinstance(answer, LockedByAnother):
                self.why = f"{rule.annotation}: {answer.why}"
                return {}, True
            if isinstance(answer, LockHeld):  # another attempt's: HAMi shares it, and then each releases the other's
                answer = claim("", self._hold.pod, now=now, expires=timedelta(seconds=rule.expires_s))
                if isinstance(answer, TakeLock) and answer.text == text:
                    self.why = f"{rule.annotation}: another attempt to bind the pod has taken it within this second"
                    return {}, True
            if isinstance(answer, TakeLock):
                wanted[rule.annotation] = answer.text
        return wanted, False

    async def _written(self, node: NodeView, wanted: dict[str, str]) -> bool:
        """Whether the node was still as we knew it. If not, it is read again."""
        hold = self._hold
        hold.unsure |= wanted
        try:
            after = await self._cluster.patch_node(node.name, wanted, resource_version=node.resource_version)
        except ClusterError as error:
            if error.conflict or (error.status and not error.temporary):
                hold.unsure.clear()  # refused
            if not error.conflict:
                raise
            self.why = "it changes too fast to be locked"
            await asyncio.sleep(next(self._delays))
            await self._fresh()
            return False
        hold.unsure.clear()
        hold.written |= wanted
        for rule in hold.rules:
            found = node.annotations.get(rule.annotation, "")
            if rule.annotation in wanted and rule.named and owned_by(found, hold.pod.namespace, hold.pod.name):
                hold.taken_over[rule.annotation] = found
        self._nodes.answered(after)
        return True

    async def _fresh(self) -> NodeView:
        node = await self._cluster.get_node(self._hold.node)
        if node is None:
            raise HamiError(f"node {self._hold.node} does not exist", hint="the pod is scheduled again")
        self._nodes.answered(node)
        return node

    async def _read_holders(self, node: NodeView) -> None:
        """A holder that is gone, or that is done with the node, holds nothing. And our view of the node may be old."""
        for rule in self._hold.rules:
            text = node.annotations.get(rule.annotation, "")
            try:
                lock = parse_lock(text) if text else None
            except WireError:
                continue
            if lock and lock.pod:
                holder = await self._cluster.get_pod(lock.namespace, lock.pod)
                if holder is None or _is_done(holder, rule, node.name):
                    self._gone.add(text)
        await self._fresh()


def _is_done(holder: PodView, rule: LockRule, node: str) -> bool:
    """Whether a pod has no use for its node's lock any more. The scheduler that took it may have been killed since.

    While a pod starts on its node, the agent there needs the lock, and releases it; but for the one that only
    schedulers release.
    """
    if holder.node:
        return holder.terminal or holder.node != node or rule.annotation == BIND_LOCK
    return holder.terminal


OWN = LockRule(annotation=BIND_LOCK, expires_s=60.0)
"""The lock of pods whose families have none: two schedulers would bind to the same device otherwise."""


class Binder:
    """Binds pods. What it began it finishes or undoes, unless nobody knows how far the API server came."""

    def __init__(
        self,
        cluster: ClusterApi,
        cache: SchedulerCache,
        locks: NodeLocks,
        now: Clock,
        *,
        pace: Backoff = PACE,
        timeout: float = 5.0,
    ) -> None:
        """``timeout`` is how many seconds the watch may take to show who else is on the node."""
        self._cluster = cluster
        self._cache = cache
        self._locks = locks
        self._now = now
        self._pace = pace
        self._timeout = timeout

    async def bind(self, pod: PodView, node: str, decision: PendingDecision | None = None) -> None:
        """Bind the pod. ``HamiError`` with the reason when it is not bound, or not known to be.

        ``decision``: the pod's is not written yet.
        """
        if pod.node == node:
            return None  # asked once more: its daemon may have served it already
        named = requested_families(pod, self._cache.families)
        asking = [(family, containers) for family in named if (containers := _asking(family, pod))]
        asked = [family for family, _ in asking]
        if not asked:
            return await self._assign(replace(pod, resource_version=""), node)  # there is no decision to be kept
        decided = pod.annotations.get(ASSIGNED_NODE, "")
        if decided != node:
            raise HamiError(
                f"pod {pod.key} was given devices on node {decided or '(none)'}, and is to be bound to {node}",
                hint="the pod is scheduled again",
            )
        agents, ours = _locks(asking)
        hold, mark = HeldLocks(node=node, pod=pod, rules=(*agents, *ours)), None
        try:
            await self._locks.take(hold)
            until = asyncio.get_running_loop().time() + min(rule.expires_s for rule in hold.rules) / 2
            self._require_offered(asked, node)
            pod, mark = await self._to_be_marked(pod, decision)
            pod = await write(self._cluster, pod, mark, pace=self._pace)
            if decision:
                self._cache.pods.confirm(pod)
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

    async def _to_be_marked(self, pod: PodView, decision: PendingDecision | None) -> tuple[PodView, PodPatch]:
        """The pod as the API server has it, and what is to be written to it. ``HamiError`` if its decision failed."""
        mark = bind_phase(self._now())
        if decision is None:
            return pod, mark
        if decision.claim():
            return decision.pod, replace(decision.patch, annotations={**decision.patch.annotations, **mark.annotations})
        await decision.done.wait()
        if decision.written is None:
            why = self._cache.pods.binding.unwritten.pop(pod.uid, f"what was decided for pod {pod.key} was not written")
            raise HamiError(why, hint="the pod is scheduled again")
        return decision.written, mark

    async def _confirm(self, pod: PodView, node: str, asked: Sequence[Family]) -> None:
        """``HamiError`` unless the pod can still have what was decided, beside all that are bound to the node.

        Another scheduler may have decided at the same time, and neither have seen the other. The node is ours now, so
        whatever was bound to it was so before the pod's version that we have just made; the watch is waited for until
        it has shown that version. Then nobody is missing.
        """
        if not await self._cache.pods.shown_up_to(pod.resource_version, within=self._timeout):
            raise HamiError(
                f"pod {pod.key}: the watch of pods is behind for {self._timeout:g} s, so who else is on node {node} "
                "is not known",
                hint="the pod is scheduled again; if this lasts, see whether the API server answers watches",
            )
        self._require_offered(asked, node)
        own = pod_info(pod, self._cache.families)
        assert own, "it names a node"
        others = [one for one in self._cache.pods.index.on(node, without=pod.uid) if one.pod.node]
        why = conflict(
            self._cache.families, self._cache.nodes.node_infos[node], own, others, order=self._cache.preferences.devices
        )
        if why:
            raise LostError(
                f"pod {pod.key} cannot have what was decided for it on node {node} any more: {why}",
                hint="another scheduler was faster; the pod is scheduled again",
            )

    def _require_offered(self, asked: Sequence[Family], node: str) -> None:
        """``HamiError`` when the node's daemon has fallen silent while the pod waited for the node."""
        node_info = self._cache.nodes.node_infos.get(node)
        missing = [
            family.resources.device_type
            for family in asked
            if node_info is None or family.resources.device_type not in node_info.pools
        ]
        if missing:
            raise HamiError(
                f"node {node} no longer offers {', '.join(missing)} devices: its daemon fell silent, or is restarting",
                hint="the pod is scheduled again",
            )

    async def _assign(self, pod: PodView, node: str, *, until: float = float("inf")) -> None:
        """POST the Binding. One without an answer may have been taken all the same, so the pod is read.

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
                break  # refused for certain
            found = await self._read_bound(pod, node, problem)
            if found is None:
                return None
            pod = replace(found, resource_version=found.resource_version if pod.resource_version else "")
            await asyncio.sleep(delay)
        raise problem

    async def _read_bound(self, pod: PodView, node: str, problem: ClusterError) -> PodView | None:
        """The pod that is to be bound as it is now; None when it is at the node."""
        try:
            return await current_pod(self._cluster, pod, pace=self._pace)
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
        self, hold: HeldLocks, ours: Sequence[LockRule], pod: PodView, mark: PodPatch | None, *, lost: bool
    ) -> None:
        """The node is free for others, and no daemon hands anything out for the pod. A decision that was ``lost`` to
        another pod is taken back, or others would count it. What another scheduler has decided meanwhile stays.

        The pod is marked first: whoever else binds it has an older version of it then, and is refused. So nobody needs
        the lock any more.
        """
        if not mark and not hold.unsure:
            await self._locks.release(hold, hold.rules, alone=False)
            return
        change = {BIND_PHASE: PHASE_FAILED, **(UNASSIGNED.annotations if lost else {})}
        if not mark:
            change |= {BIND_TIME: bind_phase(self._now()).annotations[BIND_TIME]}  # else it may be as an attempt before
        marked = replace(pod, annotations={**pod.annotations, **(mark.annotations if mark else {})})
        try:
            await write(self._cluster, marked, PodPatch(annotations=change), pace=self._pace)
        except OvertakenError as error:
            log.info("pod not marked as failed to bind", pod=pod.key, problem=error.message)
            await self._leave(hold, ours, error.found)
        except ClusterError as error:
            log.info("pod not marked as failed to bind", pod=pod.key, problem=error.message)
            await self._locks.release(hold, hold.rules, alone=error.not_found)
        else:
            await self._locks.release(hold, hold.rules, alone=True)

    async def _leave(self, hold: HeldLocks, ours: Sequence[LockRule], found: PodView) -> None:
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


def _locks(
    asking: Sequence[tuple[Family, Sequence[ContainerView]]],
) -> tuple[tuple[LockRule, ...], tuple[LockRule, ...]]:
    """The locks to take for these families: those that the nodes' agents release, and those that we do, once the pod
    is bound.

    HAMi's agents release none where only init containers ask, and families without a lock have no such agent.
    """
    agents: dict[str, LockRule] = {}
    rest: list[LockRule] = []
    for family, containers in asking:
        lock = family.rules.lock
        if lock and not all(container.init for container in containers):
            agents[lock.annotation] = lock
        else:
            rest.append(lock or OWN)
    ours = {lock.annotation: lock for lock in rest if lock.annotation not in agents}
    return tuple(agents.values()), tuple(ours.values())


def _asking(family: Family, pod: PodView) -> Sequence[ContainerView]:
    """The pod's containers that ask for a device of the family."""
    policy = family.rules.policy
    return [one for one in pod.containers if isinstance(policy.request(one), Demand)] if policy else ()


class UnsureError(HamiError):
    """Nobody knows whether the pod was bound."""


class LostError(HamiError):
    """What was decided for a pod is another pod's by now."""
