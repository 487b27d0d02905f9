"""A small scheduler that speaks HAMi's protocol: it reads only what the node says, and writes what HAMi's would."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.links import Link, Links
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView, node_view, pod_view
from hami_plugin.policy.linked import best_linked
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.vendor import Family
from hami_plugin.wire import keys
from hami_plugin.wire.lock import NodeLock, render_lock
from hami_plugin.wire.nodes import DeviceInfo, decode_json, decode_legacy, decode_scores
from hami_plugin.wire.pods import decode_devices, encode_devices

POLICY = "hami.io/gpu-scheduler-policy"
TOPOLOGY_AWARE = "topology-aware"
BINPACK = "binpack"
"""Fill devices that are shared already. Without a policy, pods are spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a container asks for: ``memory`` in MiB of each device (0 = all of it), ``cores`` in percent."""

    count: int
    memory: int
    percent: int
    cores: int

    def of(self, device: DeviceInfo) -> int:
        """MiB on this device."""
        return self.memory or device.devmem * (self.percent or 100) // 100


class SimulatedScheduler:
    """Places pods on one node for one family."""

    def __init__(self, api: SimulatedApiServer, node: str, family: Family) -> None:
        self._api = api
        self._node = node
        self._family = family

    def place(self, manifest: Mapping[str, Any], *, lock: bool = True) -> PodView:
        """Create the pod, decide, lock the node, and bind. ``HamiError`` when nothing fits."""
        made = pod_view(self._api.create_pod(manifest))
        text = encode_devices(self._decide(made))
        now = str(int(time.time()))
        self._api.annotate_pod(
            made.namespace,
            made.name,
            {
                keys.ASSIGNED_NODE: self._node,
                keys.ASSIGNED_TIME: now,
                self._family.annotations.to_allocate: text,
                self._family.annotations.allocated: text,
                keys.BIND_PHASE: keys.PHASE_ALLOCATING,
                keys.BIND_TIME: now,
            },
        )
        if lock:
            held = NodeLock(time=datetime.now(tz=UTC), namespace=made.namespace, pod=made.name)
            self._api.annotate_node(self._node, {keys.NODE_LOCK: render_lock(held)})
        return pod_view(self._api.bind(made.namespace, made.name, self._node))

    def devices(self) -> tuple[DeviceInfo, ...]:
        """What the node has registered."""
        if self._family.encode:
            return self._family.node_devices(node_view(self._api.node(self._node)))
        text = self._annotation(self._family.annotations.register)
        return (decode_json if text.startswith("[") else decode_legacy)(text) if text else ()

    def _decide(self, pod: PodView) -> list[tuple[Grant, ...]]:
        booked = self._booked(except_uid=pod.uid)
        pieces: list[tuple[Grant, ...]] = []
        for container in pod.containers:
            want = self._want(container)
            piece = self._choose(want, booked, pod.annotations.get(POLICY, "")) if want else ()
            booked.extend(piece)
            pieces.append(piece)
        return pieces

    def _want(self, container: ContainerView) -> Want | None:
        names = self._family.resources
        count = container.amount(names.count)
        if not count:
            return None
        memory = container.amount(names.memory) * self._family.memory_factor
        percent, cores = container.amount(names.memory_percent), container.amount(names.cores)
        alone = not (memory or percent or cores)  # admission makes a request without limits exclusive
        return Want(count=count, memory=memory, percent=percent, cores=100 if alone else cores)

    def _choose(self, want: Want, booked: Sequence[Grant], policy: str) -> tuple[Grant, ...]:
        shares = Counter(grant.uuid for grant in booked)
        memory: Counter[str] = Counter()
        cores: Counter[str] = Counter()
        for grant in booked:
            memory[grant.uuid] += grant.memory
            cores[grant.uuid] += grant.cores
        fitting = [
            device
            for device in self.devices()
            if device.health
            and shares[device.id] < device.count
            and device.devmem - memory[device.id] >= want.of(device)
            and device.devcore - cores[device.id] >= want.cores
            and not (want.cores == 100 and shares[device.id])  # exclusive
        ]
        if len(fitting) < want.count:
            raise HamiError(f"{want.count} devices are wanted, {len(fitting)} of {len(self.devices())} fit")
        order = -1 if policy == BINPACK else 1
        fitting.sort(key=lambda device: (order * shares[device.id], device.index))
        uuids = [device.id for device in fitting]
        chosen = self._by_links(uuids, want.count) if policy == TOPOLOGY_AWARE else uuids[: want.count]
        by_uuid = {device.id: device for device in fitting}
        return tuple(
            Grant(uuid=uuid, word=self._family.word, memory=want.of(by_uuid[uuid]), cores=want.cores) for uuid in chosen
        )

    def _by_links(self, uuids: Sequence[str], count: int) -> Sequence[str]:
        text = self._annotation(self._family.annotations.score)
        scores = decode_scores(text) if text else {}
        pairs = {(a, b): Link(score=s, label="") for a, peers in scores.items() for b, s in peers.items() if a < b}
        return best_linked(uuids, count, Links(pairs=pairs))

    def _booked(self, *, except_uid: str) -> list[Grant]:
        """What all other pods of this node were granted and have not given back."""
        grants: list[Grant] = []
        for pod in map(pod_view, self._api.pods()):
            if pod.uid == except_uid or pod.terminal or pod.annotations.get(keys.ASSIGNED_NODE) != self._node:
                continue
            for piece in decode_devices(pod.annotations.get(self._family.annotations.allocated, "")):
                grants.extend(piece)
        return grants

    def _annotation(self, key: str) -> str:
        return str(self._api.node(self._node)["metadata"].get("annotations", {}).get(key, ""))
