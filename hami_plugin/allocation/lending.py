"""Devices of which no scheduler decides: the kubelet counts whole ones, and whoever comes with an id has that device.

Nothing is matched, kept or released here, so an Allocate needs neither the API server nor the journal.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from cdi.spec import ContainerEdits
from hami_plugin.allocation.capacity import NodeState, OfferedDevices
from hami_plugin.allocation.preparation import deliver_answer
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.model.delivery import Answer, Way
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.sdk import Family
from hami_plugin.vendor_boundary.guard import Guard

log = logger(__name__)


class LendingPlugin:
    """A ``DevicePlugin`` of a family with ``lend``."""

    pre_start_required = False

    def __init__(self, family: Family, node: NodeState, *, snapshot: Watched[Snapshot], guard: Guard) -> None:
        self.resource = family.resources.count
        self._family = family
        self._node = node
        self._snapshot = snapshot
        self._guard = guard
        self._devices = OfferedDevices(family, None, snapshot)
        self.offers, self.met, self.follow = self._devices.rendered, self._devices.met, self._devices.follow

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Of the cards that are in use most, so that the others stay free to be cut anew; several of one NUMA node,
        if any has enough.
        """
        devices = {one.uuid: one for one in self._snapshot.value.devices}
        free = [devices[uuid] for uuid in available if uuid in devices and uuid not in must_include]
        taken = [devices[uuid] for uuid in must_include if uuid in devices]
        left = Counter(device.card for device in free)
        nodes = {device.numa for device in taken} or ({_roomiest(free, size)} if size > 1 else set())
        free.sort(key=lambda device: (device.numa not in nodes, left[device.card], device.order))
        return (*must_include, *(device.uuid for device in free[: size - len(must_include)]))

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """What comes with these devices. ``RefusedError`` with the reason otherwise."""
        start, outcome = time.perf_counter(), "failed"
        try:
            devices = [self._healthy(uuid) for uuid in sorted(ids)]
            answer = await self._guard.ask("lend", lambda: self._answer(devices))
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("allocate refused", resource=self.resource, reason=refusal.reason, why=refusal.message)
            raise
        except (OSError, HamiError) as error:
            outcome = RefusalReason.NOT_PREPARED
            log.warning("allocate refused", resource=self.resource, reason=outcome, why=str(error))
            raise RefusedError(RefusalReason.NOT_PREPARED, f"the host could not be prepared: {error}") from error
        finally:
            self._node.observer.allocation(self.resource, outcome, time.perf_counter() - start)
        log.info("lent", resource=self.resource, devices=[device.uuid for device in devices])
        return answer

    async def pre_start(self, ids: Sequence[str]) -> None:
        """The kubelet does not ask: a device is whoever's its answer was kept for."""

    def _healthy(self, uuid: str) -> Device:
        device = self._snapshot.value.device(uuid)
        if device is None:
            raise RefusedError(
                RefusalReason.UNKNOWN_DEVICE,
                f"this node has no device {uuid[:96]!r}",
                code="INVALID_ARGUMENT",
                hint="it went away after the kubelet chose it; the pod can be created again",
            )
        if not device.health.offered:
            raise RefusedError(
                RefusalReason.UNHEALTHY_DEVICE,
                f"{uuid} is {device.health}: {device.reason} {device.message}".rstrip(),
            )
        return device

    def _answer(self, devices: Sequence[Device]) -> Answer:
        """On the vendor's thread: all that touches the host."""
        node, host = self._family.node, self._node.host
        assert node.lend
        own, described = node.lend(devices, host), ContainerEdits()
        if Way.DEVICE_SPECS in node.delivery.ways:
            described = node.shared_edits(host).merged(*(node.device_edits(device, host) for device in devices))
        to = "/".join((self.resource, *(device.uuid for device in devices)))
        return deliver_answer(node.delivery, [device.uuid for device in devices], own, described, to=to)


def _roomiest(devices: Sequence[Device], size: int) -> int | None:
    """The NUMA node to take ``size`` devices from: one that has enough, with the fewest; else the one with most."""
    room = Counter(device.numa for device in devices)
    enough = [(count, str(numa), numa) for numa, count in room.items() if count >= size]
    if enough:
        return min(enough)[2]
    return max(room, key=lambda numa: room[numa], default=None)
