"""The filter: a node is chosen, and the decision is written to the pod before kube-scheduler hears of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.node.events import EventRecorder
from hami_plugin.policy.sites import Circumstances, Placed
from hami_plugin.scheduler.limits import Limits
from hami_plugin.scheduler.nodes import Clock, Nodes
from hami_plugin.scheduler.pods import Pods
from hami_plugin.scheduler.ports import Cluster
from hami_plugin.scheduler.retries import PACE, repeated
from hami_plugin.scheduler.standing import Standing
from hami_plugin.scheduling.decisions import assigned
from hami_plugin.scheduling.filtering import Filtered, Scene
from hami_plugin.scheduling.kept import Kept
from hami_plugin.scheduling.payloads import Offer, decided, filter_result, standing_result
from hami_plugin.vendor import Family

Json = Mapping[str, Any]

SUCCEED, FAILED = "FilteringSucceed", "FilteringFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The cluster's orders, which a pod's annotations override."""

    nodes: str = "binpack"
    devices: str = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the cluster."""

    families: tuple[Family, ...]
    nodes: Nodes
    pods: Pods
    limits: Limits
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


class Chooser:
    """Answers filter requests. Between the choice and its entry in the ledger nothing else runs."""

    def __init__(
        self,
        cluster: Cluster,
        known: Known,
        events: EventRecorder,
        now: Clock,
        *,
        standing: Standing,
        pace: Backoff = PACE,
    ) -> None:
        self._cluster = cluster
        self._known = known
        self._standing = standing
        self._events = events
        self._now = now
        self._pace = pace

    async def filter(self, offered: Offer) -> Json:
        """The one node that is left, or none with the reasons. ``ClusterError`` when it cannot be written down.

        Nodes that are given as objects need not exist: that is a question only, and nothing is written.
        """
        pod = pod_view(offered.pod)
        if offered.nodes is not None:
            return filter_result(offered, decided(self._known.scene(pod), pod, offered))
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
        outcome = decided(self._known.scene(pod), pod, offered)
        if isinstance(outcome, Filtered):
            if outcome.placed is None:
                self._known.pods.withdraw(pod.uid)
                self._events.pod(pod, FAILED, waiting(outcome, offered.names), warning=True)
            else:
                await self._decide(pod, outcome.placed)
        return filter_result(offered, outcome)

    async def _decide(self, pod: PodView, placed: Placed) -> None:
        node = placed.site.node.name
        changes = assigned(self._known.families, pod, placed, self._now())
        pods = self._known.pods
        pods.promise(replace(pod, annotations={**pod.annotations, **changes.annotations}))
        try:
            written = await repeated(lambda: self._cluster.patch_pod(pod, changes), pace=self._pace)
        except ClusterError as error:
            pods.break_off(pod.uid)
            why = f"devices were found on node {node}, and could not be written to the pod: {error.message}"
            self._events.pod(pod, FAILED, why, warning=True)
            raise
        pods.confirm(written)
        self._events.pod(pod, SUCCEED, f"devices are kept for the pod on node {node}", warning=False)


def waiting(outcome: Filtered, names: Sequence[str]) -> str:
    """Why a pod waits, in one line: which rule stands in the way on how many nodes."""
    if not names:
        return "no node was offered: other rules of kube-scheduler have ruled out all of them"
    return f"no node fits: {outcome.summary}"
