"""How pods reach the node. The one place that knows which scheduler decides; the cases ask for ``place`` only."""

import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.policy.admission import Denied
from hami_plugin.scheduling.admission import IGNORE, stored
from hami_plugin.scheduling.decisions import assigned, binding
from hami_plugin.simulation.hardware import simulate_all
from hami_plugin.simulation.scheduler import SimulatedScheduler
from hami_plugin.vendor import Family
from hami_plugin.wire import keys
from tests.realnode.node import NAME, Node
from tests.realnode.servers import until

LOCK_S, ROOM_S = 60, 60


class Scheduler:
    """Our own rules, as the simulated scheduler has them, over the real API."""

    def __init__(self, node: Node, families: Sequence[Family]) -> None:
        self._node = node
        self._families = tuple(families)
        self._rules = SimulatedScheduler(node.api, NAME, families, dict)

    def place(self, manifest: Mapping[str, Any], *, lock: bool = True) -> None:
        """Create the pod, decide, lock the node, and bind. ``HamiError`` when it is not admitted, or nothing fits."""
        api, now = self._node.api, datetime.now(tz=UTC)
        pod = pod_view(api.create_pod(self._admitted(manifest)))
        until(lambda: self._is_free(pod), f"room for pod {pod.name}", ROOM_S)
        placed = self._rules._decided(pod)
        written = {**assigned(self._families, pod, placed, now).annotations, **binding(now).annotations}
        if lock:
            until(lambda: not self._node.annotation(keys.NODE_LOCK), "the node lock to be free", LOCK_S)
            api.annotate_node(NAME, self._rules._locks(pod, placed, datetime.now(tz=UTC)))
        api.annotate_pod(pod.namespace, pod.name, written)
        api.bind(pod.namespace, pod.name, NAME)

    def _is_free(self, pod: PodView) -> bool:
        """What kube-scheduler itself looks at: whether the kubelet offers as many devices at all."""
        offered = self._node.api.node(NAME)["status"]["allocatable"]
        wanted = {name: int(n) for c in pod.containers for name, n in c.limits.items() if name in offered}
        return all(int(offered[name]) >= count for name, count in wanted.items() if name not in ("cpu", "memory"))

    def _admitted(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """As the webhook leaves it; a pod with the label that the webhook's configuration leaves out stays as it is."""
        label, value = IGNORE
        if manifest["metadata"].get("labels", {}).get(label) == value:
            return manifest
        admitted = stored(manifest, self._families)
        if isinstance(admitted, Denied):
            raise HamiError(f"the pod is not admitted: {admitted.why}")
        return admitted


def families_of(profile: str) -> tuple[Family, ...]:
    """What a scheduler knows of the vendors of these machines."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(
            family
            for hardware in simulate_all(profile, Path(folder))
            for family in hardware.vendor.families(hardware.vendor.settings.model_validate(hardware.settings))
        )
