"""What serves one vendor's ResourceClaims: its objects and tasks, beside those of the device plugin, over the same
devices. ``daemon.dra`` imports it where there are claims to serve.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from hami_plugin.allocation.capacity import NodeState
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.dra import DraNode
from hami_plugin.dra.prepared import ClaimFiles
from hami_plugin.dra.preparing import ClaimPreparer
from hami_plugin.dra.publisher import SlicePublisher
from hami_plugin.dra.slices import Taints, device_name
from hami_plugin.kubelet.dra import DeviceHealth, DraEndpoint
from hami_plugin.model.device import Device
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.partitions.manager import Partitions
from hami_plugin.process.aio import Watched
from hami_plugin.vendor_boundary.guard import Guard


class ClaimServer:
    """A vendor's. One that is not ``offering`` lets claims end that were made ready before.

    ``sources`` are the vendor's families, and ``cut`` makes partitions for claims, by the device type of their cards.
    Both may grow until it runs.
    """

    def __init__(
        self,
        driver: str,
        settings: Settings,
        node: NodeState,
        shared: DraNode,
        guard: Guard,
        *,
        sources: Sequence[FamilySource],
        cut: Mapping[str, Partitions],
        offering: bool,
        taints: str,
        sets: bool,
    ) -> None:
        self.driver = driver
        self._sources = sources
        self._claims = shared.claims
        self._ledger = node.ledger
        self._health: Watched[tuple[DeviceHealth, ...]] = Watched(())
        self._preparer = ClaimPreparer(
            self.driver,
            sources,
            node,
            shared.claims,
            ClaimFiles(self.driver, settings.cdi_dirs[-1], node.host),
            guard=guard,
            cluster=shared.cluster,
            taken=self._taken,
            accepting=offering,
            boot=shared.boot,
            cut=cut,
        )
        self._publisher = SlicePublisher(
            self.driver,
            sources,
            shared.cluster,
            shared.slices,
            node=shared.live,
            node_name=settings.node_name,
            events=node.events,
            withheld=self._withheld,
            held=self._held,
            taints=Taints(taints),
            sets=sets,
            cut=cut,
            observer=node.observer,
        )
        self.endpoint = DraEndpoint(
            self.driver,
            settings.node_name,
            self._preparer,
            self._health,
            settings.kubelet_dir.parent,
            generation=shared.generation,
        )

    def _taken(self) -> Mapping[str, str]:
        return {
            grant.uuid: f"pod {held.namespace}/{held.pod}, by the device plugin,"
            for held in self._ledger.held.values()
            for grant in held.grants
        }

    def _withheld(self) -> AbstractSet[str]:
        return self._taken().keys()

    def _held(self) -> AbstractSet[str]:
        return {share.device for one in self._claims.of(self.driver) for share in one.shares}

    def look(self) -> None:
        """A pod has ended: what it had may be published."""
        self._publisher.look()

    async def offer(self) -> None:
        """Serve."""
        await self._preparer.restore()
        await self._together(self._preparer.run, self._endpoint_run, self._publisher.run, self._show_health)

    async def let_end(self) -> None:
        """Serve until the last claim has ended."""
        await self._preparer.restore()
        await self._together(self._preparer.run, self._endpoint_run, self._until_idle)

    async def _together(self, *work: Callable[[], Any]) -> None:
        """All of it, until the first one ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(), name=f"{self.driver} {one.__name__}") for one in work]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    async def _endpoint_run(self) -> None:
        await self.endpoint.run()

    async def _until_idle(self) -> None:
        while self._claims.of(self.driver):
            await self._claims.changes.changed(self._claims.changes.version)

    async def _show_health(self) -> None:
        """The health of all devices, as it changes."""
        async with asyncio.TaskGroup() as group:
            every: list[Watched[Any]] = [self._claims.changes, *(source.snapshot for source in self._sources)]
            for watched in every:
                group.create_task(self._follow(watched), name=f"{self.driver} health")

    async def _follow(self, watched: Watched[Any]) -> None:
        while True:
            seen = watched.version
            found = tuple(self._healths())
            if found != self._health.value:
                self._health.set(found)
            if watched.closed:
                await asyncio.Event().wait()  # the daemon ends
            await watched.changed(seen)

    def _healths(self) -> Iterator[DeviceHealth]:
        """Of every card, and of whatever else claims have: a set is as well as its worst card."""
        cards = {device.uuid: device for one in self._sources for device in one.snapshot.value.devices}
        for device in cards.values():
            yield _health_of(device_name(device.uuid), [device])
        names = {device_name(uuid) for uuid in cards}
        given: defaultdict[str, list[Device]] = defaultdict(list)
        for one in self._claims.of(self.driver):
            for share in one.shares:
                if share.device not in names and share.grant.uuid in cards:
                    given[share.device].append(cards[share.grant.uuid])
        for name, devices in given.items():
            yield _health_of(name, devices)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component of an offer with its problem, which is empty when the component is ready."""
        yield f"driver {self.driver}", self.endpoint.problem
        yield f"slices {self.driver}", self._publisher.problem
        yield f"claims {self.driver}", self._preparer.problem

    @property
    def published(self) -> tuple[int, int, int]:
        """How many slices there are, their newest generation, and how many devices they have."""
        return self._publisher.published

    @property
    def limitation(self) -> str:
        """What the API server does not keep of slices that are published all the same."""
        return self._publisher.limitation

    def shown(self) -> Mapping[str, Any]:
        """What is prepared and what was refused."""
        return self._preparer.shown()

    async def forget(self, uid: str) -> str:
        """Release what is prepared for a claim that the kubelet has forgotten. Answers why not."""
        return await self._preparer.forget(uid)


def _health_of(name: str, devices: Sequence[Device]) -> DeviceHealth:
    worst = min(devices, key=lambda one: (one.health.offered, not one.reason))
    return DeviceHealth(device=name, healthy=worst.health.offered, message=f"{worst.reason} {worst.message}".strip())
