"""The ids of one resource: what the kubelet is told that this node has, and whether it asks for what it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_plugin.aio import Watched
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import Offer
from hami_plugin.policy.replicas import is_replica, physical_id, replica_ids
from hami_plugin.vendor import Family, Units

MOST_IDS = 4096
MOST_OFFERED = 200_000
"""Ids of one resource. The kubelet reads no list of so many, and a list of all must not fill the memory."""


class Offering:
    """Shares of a family's devices, or their ``units``."""

    def __init__(self, family: Family, units: Units | None, snapshot: Watched[Snapshot]) -> None:
        self._word = family.word
        self._numa_hints = family.node.numa_hints
        self._replicas = units.of_device if units else family.node.replicas
        self._snapshot = snapshot

    def offers(self) -> tuple[Offer, ...]:
        """Every share of every device, sorted by device index; all shares of a device share its health.

        ``HamiError`` when they are more than any kubelet takes.
        """
        counted = [(device, self._replicas(device)) for device in self._snapshot.value.devices]
        total = sum(count for _device, count in counted)
        if total > MOST_OFFERED:
            raise HamiError(
                f"{len(counted)} devices of {self._word} with {total} shares are more than the kubelet takes",
                hint=f"at most {MOST_OFFERED} are rendered; share each device among fewer containers",
            )
        return tuple(
            Offer(
                id=replica,
                healthy=device.health.offered,
                numa=device.numa if self._numa_hints else None,
            )
            for device, count in counted
            for replica in replica_ids(device.uuid, count)
        )

    def room(self) -> Mapping[str, int]:
        """How many ids each device has that the kubelet may hand out."""
        return {device.uuid: self._replicas(device) for device in self._snapshot.value.devices if device.health.offered}

    def check(self, ids: Sequence[str]) -> None:
        """``RefusedError`` unless these are different ids of devices that are here now."""
        if not ids or len(ids) > MOST_IDS or len(set(ids)) != len(ids):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"an Allocate must name 1 to {MOST_IDS} different device ids, this one names {len(ids)}",
                code="INVALID_ARGUMENT",
            )
        for replica in ids:
            device = self._snapshot.value.device(physical_id(replica))
            if device is None or not is_replica(replica, device.uuid, self._replicas(device)):
                raise RefusedError(
                    RefusalReason.UNKNOWN_DEVICE,
                    f"this node has no device {replica[:96]!r}",
                    code="INVALID_ARGUMENT",
                    hint="the kubelet has not taken the newest list yet; delete the pod so that it is tried again",
                )
