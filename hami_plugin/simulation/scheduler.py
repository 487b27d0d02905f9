"""A simulated scheduler for one node. It decides by the vendors' rules, and writes annotations as HAMi's does.

It reads only the node's annotations, labels and capacity; some device types are known by their capacity alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.views import NodeView, PodView, node_view, pod_view
from hami_plugin.protocol.nodes import DeviceInfo, NodeLock, render_lock
from hami_plugin.scheduler.engine.admission import admit_document
from hami_plugin.scheduler.engine.devices import ORDER_KEY, Denied
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import (
    assignment,
    bind_phase,
    read_idle_node,
    read_node,
    scheduling_policies,
    with_legacy_register,
)
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import SimulatedApiServer

POLICY = ORDER_KEY
TOPOLOGY_AWARE = "topology-aware"
BINPACK = "binpack"
"""Fill devices that are already shared. Without a policy, pods are spread."""


class DoesNotFitError(HamiError):
    """A pod that does not fit on the node. ``why`` is the scheduler's reason."""

    def __init__(self, pod: PodView, why: str, hint: str) -> None:
        super().__init__(f"pod {pod.key} does not fit: {why}", hint=hint)
        self.pod = pod
        self.why = why


class SimulatedScheduler:
    """Places pods on one node. ``counted`` is the node's capacity of each resource, as the kubelet reports it."""

    def __init__(
        self,
        api: SimulatedApiServer,
        node: str,
        families: Sequence[Family],
        counted: Callable[[], Mapping[str, int]],
    ) -> None:
        self._api = api
        self._name = node
        self._families = tuple(map(with_legacy_register, families))
        self._counted = counted

    def node(self) -> NodeView:
        """The node as a scheduler sees it now."""
        view = node_view(self._api.node(self._name))
        counted = {name: str(count) for name, count in self._counted().items()}
        return replace(view, capacity={**view.capacity, **counted})

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The node's devices and whether they are healthy, by whichever annotation says so."""
        return tuple(state.info for state in read_idle_node(self.node(), self._families).node_info.states)

    def place(self, manifest: Mapping[str, Any], *, lock: bool = True) -> PodView:
        """Admit the pod, create it, decide, lock the node, and bind. ``HamiError`` if nothing fits."""
        admitted = admit_document(manifest, self._families)
        if isinstance(admitted, Denied):
            raise HamiError(f"the pod is not admitted: {admitted.why}")
        made = pod_view(self._api.create_pod(admitted))
        placed, now = self._decided(made), datetime.now(tz=UTC)
        written = assignment(self._families, made, placed, now).annotations
        self._api.annotate_pod(made.namespace, made.name, {**written, **bind_phase(now).annotations})
        if lock:
            self._api.annotate_node(self._name, self._locks(made, placed, now))
        return pod_view(self._api.bind(made.namespace, made.name, self._name))

    def _decided(self, pod: PodView) -> PodFit:
        seen = read_node(self.node(), self._families, map(pod_view, self._api.pods()))
        found = fit_pod(pod, scheduling_policies(self._families), seen.node_info)
        if not isinstance(found, PodFit):
            raise DoesNotFitError(pod, found.why, "; ".join(seen.problems))
        return found

    def _locks(self, pod: PodView, placed: PodFit, now: datetime) -> dict[str, str]:
        """The lock of each family with a part in the decision, if it has one."""
        taken = (family.rules.lock for family in self._families if family.resources.device_type in placed.given)
        owners = {True: NodeLock(time=now, namespace=pod.namespace, pod=pod.name), False: NodeLock(time=now)}
        return {rule.annotation: render_lock(owners[rule.named]) for rule in taken if rule}
