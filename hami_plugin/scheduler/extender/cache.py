"""The scheduler's cache of the cluster: nodes, pods and quotas. A decision is assumed from the moment it is made.

Several replicas of the process may run: what another one decided is read from the pod, like our own after a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import NoReturn
from weakref import WeakValueDictionary

from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import ClusterApi
from hami_plugin.model.views import Feed, NodeView, PodPatch, PodView, QuotaView, revision
from hami_plugin.process.concurrency import Pausing, Watched, run_in_slices, run_without_pauses
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_LOCK
from hami_plugin.protocol.pods import RESIZE
from hami_plugin.scheduler.engine.capacity import Sizes, largest, sizes
from hami_plugin.scheduler.engine.devices import NodeInfo, Quota
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterCache, OccupiedNode
from hami_plugin.scheduler.engine.fit import CycleOptions
from hami_plugin.scheduler.engine.node_info import (
    ChangeLog,
    Handshakes,
    PodIndex,
    PodInfo,
    check_handshakes,
    pod_info,
    read_idle_node,
)
from hami_plugin.scheduler.engine.quotas import limits, used
from hami_plugin.scheduler.extender.claiming import ClaimedPods
from hami_plugin.sdk import Family

log = logger(__name__)

Clock = Callable[[], datetime]
"""The present time, with its zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A pod that is being bound, or was, and that the watch has not shown at its node yet."""

    pod: PodView
    node: str
    unknown: bool = False


class PendingDecision:
    """A decision of ours that is not written to its pod yet. The bind may ``claim`` it, and write it with its own mark:
    one write in place of two. Where no bind comes soon, it is written before.

    ``pod`` is as the API server has it. Once ``done``, ``written`` is the pod with it; None if claimed, or failed.
    """

    def __init__(self, pod: PodView, patch: PodPatch) -> None:
        self.pod = pod
        self.patch = patch
        self.claimed = asyncio.Event()
        self.done = asyncio.Event()
        self.written: PodView | None = None
        self._begun = False

    @property
    def node(self) -> str:
        return self.patch.annotations[ASSIGNED_NODE]

    def claim(self) -> bool:
        """Whether the bind has to write it. False: it is being written, or was."""
        if not self._begun:
            self._begun = True
            self.claimed.set()
        return self.claimed.is_set()

    async def unclaimed(self, *, within: float) -> bool:
        """Wait for the bind. Whether it has not come, so that the decision is to be written now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.claimed.wait()
        self._begun = True
        return not self.claimed.is_set()


class BindingPods:
    """Which pods have a node for good, and whose turn it is to write to a pod.

    A pod is kept from the beginning of its bind until the watch shows it at a node, or gone.
    """

    def __init__(self, index: PodIndex) -> None:
        self._index = index
        self.pending_decisions: dict[str, PendingDecision] = {}
        """By the pod's UID, each from its filter until it is written."""
        self.unwritten: dict[str, str] = {}
        """By the pod's UID, why the API server has not taken its last decision, until it is decided or bound anew."""
        self._binding: dict[str, Binding] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def pending(self) -> Mapping[str, Binding]:
        """By the pod's UID, what the watch has not shown yet."""
        return self._binding

    def turn(self, uid: str) -> asyncio.Lock:
        """Held from a choice for this pod until it is written, or a bind has it: nothing else comes between."""
        return self._turns.setdefault(uid, asyncio.Lock())

    def node_of(self, uid: str) -> str:
        """The node to which the pod is bound or being bound; empty while it may still go anywhere."""
        binding = self._binding.get(uid)
        return self._bound(uid) or (binding.node if binding else "")

    def begin(self, pod: PodView, node: str) -> None:
        """The pod is being bound from now on. Once the watch shows it at its node, that counts instead."""
        self._binding[pod.uid] = Binding(pod=pod, node=node)

    def end(self, uid: str) -> None:
        """The pod was not bound."""
        self._binding.pop(uid, None)

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self.end(uid)
        self.unwritten.pop(uid, None)

    def mark_unknown(self, uid: str) -> None:
        """Nobody knows whether the pod was bound. Its node counts until the API server has been asked."""
        if binding := self._binding.get(uid):  # else the watch knows meanwhile
            self._binding[uid] = replace(binding, unknown=True)

    def is_unknown(self, uid: str) -> bool:
        """Whether it is still to be seen if the pod was bound."""
        binding = self._binding.get(uid)
        return binding is not None and binding.unknown

    def seen(self, pod: PodView) -> None:
        """The API server has shown the pod. At a node it is settled."""
        if pod.node:
            self._binding.pop(pod.uid, None)

    def _bound(self, uid: str) -> str:
        known = self._index.entries.get(uid)
        return known.pod.node if known else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedPod:
    """A decision of ours that the watch has not shown yet. ``revision`` is 0 until the API server has taken it;
    ``before`` is what was known of the pod until then.
    """

    entry: PodInfo
    before: PodInfo | None
    revision: int = 0


class PodCache:
    """All pods with a decision, kept by a watch."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = tuple(families)
        self.index = PodIndex()
        self.binding = BindingPods(self.index)
        self.claimed = ClaimedPods()
        self.listed = Watched(False)
        self.shown = Watched(0)
        self.feed: Feed[PodView] = Feed(
            replace=lambda pods: run_without_pauses(self._replacing(pods)),
            update=self._update,
            delete=self._delete,
            replacing=self._replacing,
        )
        self.resizing: set[str] = set()
        """UIDs of the pods that run and ask to be resized."""
        self._assumed: dict[str, AssumedPod] = {}
        self._released: dict[str, tuple[str, str]] = {}

    @property
    def assumed(self) -> Mapping[str, AssumedPod]:
        """By the pod's UID."""
        return self._assumed

    def assume(self, decided: PodView) -> None:
        """Enter what was just decided: ``decided`` is the pod with its new annotations."""
        entry = pod_info(decided, self._families)
        assert entry, "a decision names a node"
        before = self.index.entries.get(decided.uid)
        self._assumed[decided.uid] = AssumedPod(entry=entry, before=before)
        self._released.pop(decided.uid, None)
        self.index.put(entry)

    def newest(self, pod: PodView) -> PodView:
        """The pod as we know it, if that is a newer version than this one: kube-scheduler's may be from before our own
        last decision.
        """
        known = self.index.entries.get(pod.uid)
        newer = known and revision(known.pod.resource_version) > revision(pod.resource_version)
        return known.pod if known and newer else pod

    def confirm(self, written: PodView) -> None:
        """The API server has taken a decision of ours, in this version of the pod."""
        if assumed := self._assumed.get(written.uid):  # else the pod is gone
            version = revision(written.resource_version)
            self._assumed[written.uid] = replace(assumed, revision=version)
            self.index.update(written)

    def written(self, uid: str) -> bool:
        """Whether the API server has what is known of the pod."""
        assumed = self._assumed.get(uid)
        return assumed is None or assumed.revision > 0

    def forget(self, uid: str, found: PodView | None = None) -> None:
        """The API server has not taken a decision of ours: what was known before counts again, or the pod as it was
        ``found`` with another scheduler's decision.
        """
        assumed = self._assumed.pop(uid, None)
        if assumed is None:
            return
        self.index.drop(uid)
        if found:
            self.see(found)
        elif assumed.before:
            self.index.put(assumed.before)

    def release(self, uid: str) -> bool:
        """Nothing fits any more: what was decided earlier on a pod that waits holds nothing. Whether there was any."""
        known = self.index.entries.get(uid)
        if known is None or known.pod.node:
            return False
        self._assumed.pop(uid, None)
        self._released[uid] = _stamp(known.pod)
        self.index.drop(uid)
        return True

    def see(self, pod: PodView) -> None:
        """A version of a pod from the watch. One that is older than our own decision does not change it; one at a node
        is final, also where another scheduler has bound it while our decision is on its way.
        """
        self.binding.seen(pod)
        self.claimed.see(pod)
        assumed = self._assumed.get(pod.uid)
        shown = assumed and 0 < assumed.revision <= revision(pod.resource_version)
        if assumed and not shown and not pod.terminal and not pod.node:
            return
        self._assumed.pop(pod.uid, None)
        if not pod.node and self._released.get(pod.uid) == _stamp(pod):
            return
        self._released.pop(pod.uid, None)
        self.index.see(pod, self._families)
        resizing = RESIZE in pod.annotations and pod.phase == "Running" and not pod.deleted
        (self.resizing.add if resizing else self.resizing.discard)(pod.uid)

    def answered(self, pod: PodView) -> None:
        """A version of a pod as an answer to a call of ours. One that the watch has shown to be gone stays gone."""
        if pod.uid in self._assumed or pod.uid in self.index.entries or pod.uid in self.binding.pending:
            self.see(pod)

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self.binding.remove(uid)
        self._assumed.pop(uid, None)
        self._released.pop(uid, None)
        self.resizing.discard(uid)
        self.claimed.remove(uid)
        self.index.drop(uid)

    async def shown_up_to(self, version: str, *, within: float) -> bool:
        """Whether the watch has shown everything up to this version of a pod, at the latest after so many seconds.

        The API server gives versions in the order of its writes, and a watch keeps that order.
        """
        wanted = revision(version)
        try:
            async with asyncio.timeout(within):
                while self.shown.value < wanted:
                    await self.shown.changed(self.shown.version)
        except TimeoutError:
            return False
        return True

    def _update(self, pod: PodView) -> None:
        self.see(pod)
        self._advance(revision(pod.resource_version))

    def _advance(self, to: int) -> None:
        self.shown.set(max(self.shown.value, to))

    def _replacing(self, pods: Sequence[PodView]) -> Pausing[None]:
        """A list may be older than our last decisions: those that it does not show are asked about one by one later.

        It is in no order, so that nothing of it counts as shown before all of it is.
        """
        there = {pod.uid for pod in pods} | self._assumed.keys()
        known = self.index.entries.keys() | self._released.keys() | self.binding.unwritten.keys() | self.claimed.uids
        for uid in known - there:
            self.remove(uid)
        newest = 0
        for pod in pods:
            self.see(pod)
            newest = max(newest, revision(pod.resource_version))
            yield
        self._advance(newest)
        self.listed.set(True)

    def _delete(self, pod: PodView) -> None:
        self.remove(pod.uid)
        self._advance(revision(pod.resource_version))


def _stamp(pod: PodView) -> tuple[str, str]:
    return pod.annotations.get(ASSIGNED_NODE, ""), pod.annotations.get(ASSIGNED_TIME, "")


@dataclass(slots=True, kw_only=True)
class _Known:
    """One node. ``node_info`` has all that it registered, ``sizes`` what of it is largest."""

    live: Watched[NodeView | None]
    node_info: NodeInfo
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    handshakes: Handshakes = field(default_factory=lambda: Handshakes(offered=frozenset()))


class NodeCache:
    """Every node. A node's devices are read once for each change of what they are written in."""

    def __init__(self, families: Sequence[Family], now: Clock) -> None:
        self._families = {family.resources.device_type: family for family in families}
        self._volatile = frozenset(
            key
            for family in families
            for key in (family.rules.annotations.handshake, family.rules.lock.annotation if family.rules.lock else "")
        )
        self._volatile |= {BIND_LOCK}
        self._now = now
        self._known: dict[str, _Known] = {}
        self._offered: dict[str, NodeInfo] = {}
        self.changes = ChangeLog()
        self._largest: Mapping[str, Sizes] | None = None
        self.listed = Watched(False)
        self.feed: Feed[NodeView] = Feed(
            replace=lambda nodes: run_without_pauses(self._replacing(nodes)),
            update=self.deliver,
            delete=self._delete,
            replacing=self._replacing,
        )

    @property
    def node_infos(self) -> Mapping[str, NodeInfo]:
        """What each node offers: its devices whose daemon is believed to live, as if nobody had anything of them."""
        return self._offered

    @property
    def largest(self) -> Mapping[str, Sizes]:
        """What is largest of all that nodes have registered, also while their daemons are away, by device type."""
        if self._largest is None:
            self._largest = largest(known.sizes for known in self._known.values())
        return self._largest

    def live(self, name: str) -> Watched[NodeView | None]:
        """The node at each change; a closed one for a node that nobody knows."""
        if known := self._known.get(name):
            return known.live
        nobody: Watched[NodeView | None] = Watched(None)
        nobody.close()
        return nobody

    def answered(self, node: NodeView) -> None:
        """Take the answer to a call of ours. That of a node which the watch does not know, or knows to be another by
        now, is dropped: no watch would ever delete it.
        """
        known = self._known.get(node.name)
        if known and known.live.value and known.live.value.uid == node.uid:
            self.deliver(node)

    def deliver(self, node: NodeView) -> None:
        """Take a view from the watch. An older one of the same node is dropped."""
        known = self._known.get(node.name)
        seen = known.live.value if known else None
        if seen and seen.uid == node.uid and revision(node.resource_version) < revision(seen.resource_version):
            return
        self._see(node)

    def checking_handshakes(self) -> Pausing[Mapping[str, Mapping[str, str | None]]]:
        """Judge every node's daemons again, since time has passed, with pauses. What is to be written to which node, if
        anything.
        """
        for known in list(self._known.values()):
            if known.live.value and not known.live.closed:
                self._judge(known, known.live.value, known.live.value)
            yield
        return {name: known.handshakes.write for name, known in self._known.items() if known.handshakes.write}

    def _replacing(self, nodes: Sequence[NodeView]) -> Pausing[None]:
        for name in self._known.keys() - {node.name for node in nodes}:
            self._forget(name)
        for node in nodes:
            self._see(node)
            yield
        self.listed.set(True)

    def _delete(self, node: NodeView) -> None:
        self._forget(node.name)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        self._offered.pop(name, None)
        self.changes.note(name)
        self._largest = None
        if known:
            known.live.set(None)
            known.live.close()

    def _see(self, node: NodeView) -> None:
        known = self._known.get(node.name)
        if known is None:
            known = _Known(live=Watched(None), node_info=NodeInfo(node=node, pools={}))
            self._known[node.name] = known
        before = known.live.value
        if before is None or not self._alike(before, node):
            known.node_info = self._read(node)
            before_sizes, known.sizes = known.sizes, sizes(known.node_info, self._families.values())
            if known.sizes != before_sizes:
                self._largest = None
            self._offered.pop(node.name, None)
        known.live.set(node)
        self._judge(known, node, before if before is not None and before.uid == node.uid else None)

    def _read(self, node: NodeView) -> NodeInfo:
        surveyed = read_idle_node(node, self._families.values())
        for problem in surveyed.problems:
            log.warning("devices of a node cannot be read", node=node.name, problem=problem)
        pools = {device_type: pool for device_type, pool in surveyed.node_info.pools.items() if pool.states}
        return replace(surveyed.node_info, pools=pools)

    def _judge(self, known: _Known, node: NodeView, before: NodeView | None) -> None:
        """Judge the node's daemons, and offer what is theirs. The offer stays the same object while it is the same."""
        there = {device_type: self._families[device_type] for device_type in known.node_info.pools}
        now = self._now().astimezone().replace(tzinfo=None)  # the wire has the writer's local time
        handshakes = check_handshakes(node, there, now, before=before, silent=known.handshakes.silent)
        if handshakes.silent != known.handshakes.silent:
            log.info(
                "a node's daemons fell silent, or are heard again", node=node.name, silent=sorted(handshakes.silent)
            )
        if node.name not in self._offered or handshakes.offered != known.handshakes.offered:
            pools = {
                device_type: pool
                for device_type, pool in known.node_info.pools.items()
                if device_type in handshakes.offered
            }
            self._offered[node.name] = replace(known.node_info, pools=pools)
            self.changes.note(node.name)
        known.handshakes = handshakes

    def _alike(self, one: NodeView, other: NodeView) -> bool:
        """Whether both say the same of the node's devices: its lock and its handshakes say nothing of them."""
        if (one.labels, one.capacity, one.allocatable) != (other.labels, other.capacity, other.allocatable):
            return False
        return one.annotations == other.annotations or all(
            one.annotations.get(key) == other.annotations.get(key)
            for key in (one.annotations.keys() | other.annotations.keys()) - self._volatile
        )


NOTHING: Mapping[str, int] = MappingProxyType({})


class QuotaCache:
    """Every ResourceQuota, and what is left of it."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = tuple(families)
        self._known: dict[str, dict[str, QuotaView]] = {}
        self.listed = Watched(False)
        self.feed: Feed[QuotaView] = Feed(replace=self._replace, update=self._update, delete=self._delete)

    @property
    def namespaces(self) -> Sequence[str]:
        """Those that have a quota."""
        return list(self._known)

    def hard(self, namespace: str) -> Sequence[Mapping[str, str]]:
        """All limits of a namespace, as they are written."""
        return [one.hard for one in self._known.get(namespace, {}).values()]

    def quota(self, namespace: str, index: PodIndex, *, without: str, claimed: Mapping[str, int] = NOTHING) -> Quota:
        """What a namespace may have of each resource, and what its pods have, without that of one pod. ``claimed`` is
        what they have by claims.
        """
        if namespace not in self._known:
            return Quota()
        allowed = limits((one.hard for one in self._known.get(namespace, {}).values()), self._families)
        if not allowed:
            return Quota()
        there = [one.held for one in index.of(namespace, without=without)]
        return Quota(limits=allowed, used=Counter(claimed) + Counter(used(self._families, there)))

    def _update(self, quota: QuotaView) -> None:
        try:
            limits([quota.hard], self._families)
        except ValueError as error:
            log.warning("a quota cannot be read", quota=f"{quota.namespace}/{quota.name}", problem=str(error))
            self._delete(quota)
            return
        self._known.setdefault(quota.namespace, {})[quota.name] = quota

    def _delete(self, quota: QuotaView) -> None:
        there = self._known.get(quota.namespace, {})
        there.pop(quota.name, None)
        if not there:
            self._known.pop(quota.namespace, None)

    def _replace(self, quotas: Sequence[QuotaView]) -> None:
        self._known.clear()
        for quota in quotas:
            self._update(quota)
        self.listed.set(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The cluster's node order and device order, which a pod's annotations override."""

    nodes: str = "binpack"
    devices: str = "spread"


class SchedulerCache:
    """What the scheduler knows of the cluster. A decision is made on a snapshot of it."""

    def __init__(self, families: Sequence[Family], now: Clock, preferences: Preferences) -> None:
        self.families = tuple(families)
        self.preferences = preferences
        self.nodes = NodeCache(families, now)
        self.pods = PodCache(families)
        self.quotas = QuotaCache(families)
        self._kept = FilterCache()

    def snapshot(self, pod: PodView) -> ClusterSnapshot:
        """What counts for a decision about this pod: all but what it has itself."""
        quota = self.quota(pod.namespace, without=pod.uid)
        return ClusterSnapshot(
            families=self.families,
            nodes=self.nodes.node_infos,
            changes=self.nodes.changes,
            pods=self.pods.index,
            options=CycleOptions(order=self.preferences.devices, quota=quota),
            node_order=self.preferences.nodes,
            kept=self._kept,
        )

    def occupied(self, node: str) -> OccupiedNode | None:
        """A node with what pods have of it, the same object while nothing changes there; None where none is known."""
        node_info = self.nodes.node_infos.get(node)
        if node_info is None:
            return None
        return self._kept.occupancy.of(self.families, node_info, self.pods.index.on(node))

    def quota(self, namespace: str, *, without: str) -> Quota:
        """A namespace's, without what one pod has."""
        return self.quotas.quota(namespace, self.pods.index, without=without, claimed=self.claimed(namespace))

    def claimed(self, namespace: str) -> Mapping[str, int]:
        """What a namespace's pods have by claims, if it has quotas."""
        return self.pods.claimed.used(namespace, time.monotonic()) if self.quotas.hard(namespace) else NOTHING

    def counted(self, namespace: str, families: Sequence[Family]) -> Mapping[str, int]:
        """What a namespace's pods have of these families in either way: devices, MiB and cores, by resource."""
        if not self.quotas.hard(namespace):
            return NOTHING
        there = self.pods.index.of(namespace)
        total = Counter(self.claimed(namespace)) + Counter(used(families, [one.held for one in there]))
        for name in {family.resources.count for family in families}:
            mains = (container for one in there for container in one.pod.containers if not container.alone)
            total[name] += sum(container.amount(name) for container in mains)
        return total

    @property
    def missing(self) -> Sequence[str]:
        """The resources that have not been listed yet."""
        listed = {"nodes": self.nodes.listed, "pods": self.pods.listed, "resourcequotas": self.quotas.listed}
        return [name for name, done in listed.items() if not done.value]

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for listed in (self.nodes.listed, self.pods.listed, self.quotas.listed):
            await listed.changed(0)


AT_ONCE = 8
"""So many calls to the API server at the same time."""


class Resync:
    """Every so many seconds, for ever: asks the nodes' daemons for a sign of life, and reads pods that the watch has
    not shown since we wrote to them.
    """

    def __init__(self, cluster: ClusterApi, nodes: NodeCache, pods: PodCache, *, every: float) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._pods = pods
        self._every = every
        self._calls = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> NoReturn:
        await self._nodes.listed.changed(0)
        old: Mapping[str, AssumedPod] = {}
        pending: Mapping[str, Binding] = {}
        binding = self._pods.binding
        while True:
            writes = await run_in_slices(self._nodes.checking_handshakes())
            async with asyncio.TaskGroup() as group:
                for name, annotations in writes.items():
                    group.create_task(self._write(name, annotations), name=f"handshake of {name}")
                for uid, assumed in old.items():
                    if self._pods.assumed.get(uid) == assumed:
                        group.create_task(
                            self._read_assumed(assumed.entry.pod), name=f"assumed pod {assumed.entry.pod.key}"
                        )
                for uid, bind in pending.items():
                    if binding.pending.get(uid) is bind:
                        group.create_task(self._settle(bind), name=f"binding of {bind.pod.key}")
            pending = dict(binding.pending)
            old = {uid: assumed for uid, assumed in self._pods.assumed.items() if assumed.revision}
            await asyncio.sleep(self._every)

    async def _write(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Ask, or take a question back. If another replica was faster the node has changed, and the next round sees."""
        node = self._nodes.live(name).value
        if node is None:
            return
        async with self._calls:
            try:
                after = await self._cluster.patch_node(name, annotations, resource_version=node.resource_version)
            except ClusterError as error:
                if not error.conflict:
                    log.warning("handshake not written", node=name, problem=error.message)
                return
        self._nodes.answered(after)

    async def _read_assumed(self, pod: PodView) -> None:
        """The watch has not shown a decision that the API server took: the pod may have gone in a gap of the watch."""
        if found := await self._read(pod):
            self._pods.answered(found)

    async def _settle(self, bind: Binding) -> None:
        """The watch has not shown what became of a bind: the pod may have gone in a gap of the watch."""
        found = await self._read(bind.pod)
        if found and (found.node or found.terminal):
            self._pods.answered(found)
            self._pods.binding.end(found.uid)
        elif found and bind.unknown:
            self._pods.binding.end(found.uid)

    async def _read(self, pod: PodView) -> PodView | None:
        """The pod at the API server; None when it cannot be read. One that is gone leaves the cache."""
        async with self._calls:
            try:
                found = await self._cluster.get_pod(pod.namespace, pod.name)
            except ClusterError as error:
                log.info("pod not read", pod=pod.key, problem=error.message)
                return None
        if found is None or found.uid != pod.uid:
            self._pods.remove(pod.uid)
            return None
        return found
