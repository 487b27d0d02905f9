"""Taking a node for a pod: waiting in line for it, and giving it back when the pod was not bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from weakref import WeakValueDictionary

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError, HamiError, WireError
from hami_plugin.log import logger
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME
from hami_plugin.protocol.lock import owned_by, parse_lock
from hami_plugin.scheduler.engine.assignment import Changes
from hami_plugin.scheduler.engine.node_lock import Busy, Mine, Take, claim
from hami_plugin.scheduler.extender.cache import Clock, NodeCache
from hami_plugin.scheduler.extender.ports import Cluster
from hami_plugin.sdk import LockRule

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


async def repeated(call: Callable[[], Awaitable[T]], *, pace: Backoff = PACE) -> T:
    """Call until it succeeds, a few times at most. ``ClusterError`` of the last time, or of one that no time mends."""
    for _try, delay in zip(range(TRIES - 1), pace.delays(), strict=False):
        try:
            return await call()
        except ClusterError as error:
            if not error.temporary:
                raise
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    return await call()


async def write(cluster: Cluster, pod: PodView, changes: Changes, *, pace: Backoff = PACE) -> PodView:
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
                pod = await present(cluster, pod, changes, sure=sure, pace=pace)
                if not sure and _has(pod, changes):
                    return pod
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    raise AssertionError("the last try answers or raises")


async def present(
    cluster: Cluster, pod: PodView, changes: Changes | None = None, *, sure: bool = True, pace: Backoff = PACE
) -> PodView:
    """The pod's present version. ``OvertakenError`` when somebody else has decided on it since ``pod`` was read.

    When it is not ``sure`` that our ``changes`` were not taken, a pod that has them is no other's.
    """
    found = await repeated(lambda: cluster.get_pod(pod.namespace, pod.name), pace=pace)
    if found is None or found.uid != pod.uid:
        raise ClusterError(f"pod {pod.key} is gone", status=404, hint="nothing to do")
    keys = (*_DECISION, *(changes.annotations if changes else ()))
    same = found.node == pod.node and all(found.annotations.get(key) == pod.annotations.get(key) for key in keys)
    ours = not sure and changes is not None and found.node == pod.node and _has(found, changes)
    if not same and not ours:
        raise OvertakenError(found)
    return found


def _has(pod: PodView, changes: Changes) -> bool:
    return all(pod.annotations.get(key) == text for key, text in changes.annotations.items())


log = logger(__name__)

LOOK_AGAIN = 1.0
"""After so many seconds without news of a node that is taken, its holder is asked for."""


@dataclass(slots=True, kw_only=True)
class Hold:
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
        self, cluster: Cluster, nodes: NodeCache, now: Clock, *, patience: float, pace: Backoff = PACE
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._now = now
        self._patience = patience
        self._pace = pace
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, hold: Hold) -> None:
        """Take the node. ``HamiError`` when it stays another pod's for too long, ``ClusterError`` from the server."""
        if not hold.rules:
            return
        line = self._lines.setdefault(hold.node, asyncio.Lock())
        attempt = _Attempt(self._cluster, self._nodes, self._now, self._pace, hold)
        try:
            async with asyncio.timeout(self._patience), line:
                await attempt.run()
        except TimeoutError:
            raise HamiError(
                f"node {hold.node}: {attempt.why}, for {self._patience:g} s",
                hint="the pod is scheduled again; if this lasts, see whether the node's daemon runs",
            ) from None

    async def release(self, hold: Hold, rules: Sequence[LockRule], *, alone: bool) -> None:
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

    async def _release(self, hold: Hold, rules: Sequence[LockRule], *, alone: bool) -> None:
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

    def __init__(self, cluster: Cluster, nodes: NodeCache, now: Clock, pace: Backoff, hold: Hold) -> None:
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
                if not await live.changed(version, LOOK_AGAIN):
                    await self._look_at(node)
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
            if isinstance(answer, Busy):
                self.why = f"{rule.annotation}: {answer.why}"
                return {}, True
            if isinstance(answer, Mine):  # another attempt's: HAMi shares it, and then each releases the other's
                answer = claim("", self._hold.pod, now=now, expires=timedelta(seconds=rule.expires_s))
                if isinstance(answer, Take) and answer.text == text:
                    self.why = f"{rule.annotation}: another attempt to bind the pod has taken it within this second"
                    return {}, True
            if isinstance(answer, Take):
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

    async def _look_at(self, node: NodeView) -> None:
        """A holder that is gone or has ended holds nothing. And our own view of the node may be an old one."""
        for rule in self._hold.rules:
            text = node.annotations.get(rule.annotation, "")
            try:
                lock = parse_lock(text) if text else None
            except WireError:
                continue
            if lock and lock.pod:
                holder = await self._cluster.get_pod(lock.namespace, lock.pod)
                if holder is None or holder.terminal:
                    self._gone.add(text)
        await self._fresh()
