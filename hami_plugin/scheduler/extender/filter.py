"""The filter: a node is chosen, and the decision is written to the pod before kube-scheduler hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.aio import Backoff, in_slices
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.scheduler.engine.filtering import Filtered, Kept, Scene, Unasked, offered_by, searching
from hami_plugin.scheduler.engine.ledger import TAKEN_BACK, Changes, assigned
from hami_plugin.scheduler.engine.pods import Circumstances, Placed
from hami_plugin.scheduler.extender.bind import PACE, OvertakenError, repeated, write
from hami_plugin.scheduler.extender.cache import BindingPods, Clock, NodeCache, PodCache, QuotaCache
from hami_plugin.scheduler.extender.payloads import Offer, deciding, filter_result, standing_result
from hami_plugin.scheduler.extender.ports import Cluster
from hami_plugin.sdk import Family

Json = Mapping[str, Any]

log = logger(__name__)

SUCCEED, FAILED = "FilteringSucceed", "FilteringFailed"

MAX_CHANGES = 16
"""So often a choice is looked at again because its node has changed while others were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The cluster's orders, which a pod's annotations override."""

    nodes: str = "binpack"
    devices: str = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What is known of the cluster."""

    families: tuple[Family, ...]
    nodes: NodeCache
    pods: PodCache
    limits: QuotaCache
    preferences: Preferences = field(default_factory=Preferences)
    kept: Kept = field(default_factory=Kept)

    def scene(self, pod: PodView) -> Scene:
        """What counts for a decision about this pod: all but what it has itself."""
        quota = self.limits.quota(pod.namespace, self.pods.ledger, without=pod.uid)
        return Scene(
            families=self.families,
            nodes=self.nodes.sites,
            ledger=self.pods.ledger,
            circumstances=Circumstances(order=self.preferences.devices, quota=quota),
            node_order=self.preferences.nodes,
            kept=self.kept,
        )


class Filter:
    """Answers filter requests, one choice after the other. Looking at many nodes takes long, so it is done in slices;
    what has changed meanwhile is looked at again, and between that and the entry in the ledger nothing else runs.
    """

    def __init__(
        self,
        cluster: Cluster,
        known: ClusterState,
        events: EventRecorder,
        now: Clock,
        *,
        standing: BindingPods,
        pace: Backoff = PACE,
    ) -> None:
        self._cluster = cluster
        self._known = known
        self._standing = standing
        self._events = events
        self._now = now
        self._pace = pace
        self._turn = asyncio.Lock()

    async def filter(self, offered: Offer) -> Json:
        """The one node that is left, or none with the reasons. ``ClusterError`` when it cannot be written down.

        Nodes that are given as objects need not exist: that is a question only, and nothing is written.
        """
        pod = pod_view(offered.pod)
        if offered.nodes is not None:
            return filter_result(offered, await in_slices(deciding(self._known.scene(pod), pod, offered)))
        async with self._standing.turn(pod.uid):
            node = self._standing.node_of(pod.uid)
            if self._standing.doubtful(pod.uid) and node not in offered.names:
                node = await self._looked_at(pod)
            return standing_result(offered, node) if node else await self._choose(offered, pod)

    async def _looked_at(self, pod: PodView) -> str:
        """The node of a pod that may have been bound, as the API server knows it. Empty: it may go anywhere."""
        found = await repeated(lambda: self._cluster.get_pod(pod.namespace, pod.name), pace=self._pace)
        if found and found.uid == pod.uid and found.node:
            return found.node
        self._standing.end(pod.uid)
        return ""

    async def _choose(self, offered: Offer, pod: PodView) -> Json:
        async with self._turn:
            outcome = await self._chosen(pod, offered.names)
            newest = self._known.pods.newest(pod)
            changes = self._enter(pod, outcome, offered.names) if isinstance(outcome, Filtered) else None
        if changes:
            await self._write(newest, changes)
        return filter_result(offered, outcome)

    async def _chosen(self, pod: PodView, names: Sequence[str]) -> Filtered | Unasked:
        """A choice that still holds. A node that has changed is looked at again; where it does not do any more, all."""
        found = await in_slices(searching(self._known.scene(pod), pod, names))
        for _ in range(MAX_CHANGES):
            if isinstance(found, Unasked) or found.placed is None or self._holds(pod, found.placed):
                return found
            node = found.placed.site.node.name
            again = await in_slices(searching(self._known.scene(pod), pod, [node]))
            if isinstance(again, Filtered) and again.placed:
                found = replace(found, placed=again.placed)
            else:
                found = await in_slices(searching(self._known.scene(pod), pod, names))
        raise HamiError(
            f"pod {pod.key}: the nodes change faster than they can be looked at", hint="the pod is scheduled again"
        )

    def _holds(self, pod: PodView, placed: Placed) -> bool:
        """Whether the node, and what others have of it, are still those for which the choice was made."""
        scene = self._known.scene(pod)
        step = placed.steps[0]
        return offered_by(scene, pod, placed.site.node.name) is placed.site and (
            scene.circumstances.quota == step.context.quota
        )

    def _enter(self, pod: PodView, outcome: Filtered, names: Sequence[str]) -> Changes | None:
        """What was chosen counts from now on. The decision, if there is one."""
        if outcome.placed is None:
            known = self._known.pods.release(pod.uid)
            self._events.pod(pod, FAILED, waiting(outcome, names), warning=True)
            return TAKEN_BACK if known else None
        changes = assigned(self._known.families, pod, outcome.placed, self._now())
        self._known.pods.assume(replace(pod, annotations={**pod.annotations, **changes.annotations}))
        return changes

    async def _write(self, pod: PodView, changes: Changes) -> None:
        node, pods = changes.annotations[ASSIGNED_NODE], self._known.pods
        if not node:
            await self._take_back(pod)
            return
        try:
            written = await write(self._cluster, pod, changes, pace=self._pace)
        except ClusterError as error:
            pods.forget(pod.uid, error.found if isinstance(error, OvertakenError) else None)
            why = f"devices were found on node {node}, and could not be written to the pod: {error.message}"
            self._events.pod(pod, FAILED, why, warning=True)
            raise
        pods.confirm(written)
        self._events.pod(pod, SUCCEED, f"devices are kept for the pod on node {node}", warning=False)

    async def _take_back(self, pod: PodView) -> None:
        """Other schedulers hear that the pod holds nothing. If they do not, they count it until the pod is gone."""
        try:
            await write(self._cluster, pod, TAKEN_BACK, pace=self._pace)
        except ClusterError as error:
            log.info("former decision not taken back", pod=pod.key, problem=error.message)


def waiting(outcome: Filtered, names: Sequence[str]) -> str:
    """Why a pod waits, in one line: which rule stands in the way on how many nodes."""
    if not names:
        return "no node was offered: other rules of kube-scheduler have ruled out all of them"
    return f"no node fits: {outcome.summary}"
