"""One vendor's DRA driver: its objects and tasks, beside those of the device plugin, over the same devices.

A vendor's cards are offered in one of both ways. What containers still have in the other way is left to them: cards by
the device plugin are not published, and with claims left the device plugin waits, while the driver lets them end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from hami_plugin.allocation.capacity import NodeState
from hami_plugin.config.settings import Settings
from hami_plugin.dra.prepared import ClaimFiles, PreparedClaims
from hami_plugin.dra.preparing import ClaimCluster, ClaimPreparer
from hami_plugin.dra.publisher import NodeSlices, SliceCluster, SlicePublisher
from hami_plugin.dra.slices import Taints, device_name, driver_name
from hami_plugin.kubelet.dra import DeviceHealth, DraEndpoint
from hami_plugin.model.device import Device
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.partitions.manager import Partitions
from hami_plugin.process.aio import Watched
from hami_plugin.process.log import logger
from hami_plugin.vendor_boundary.guard import Guard

log = logger(__name__)


class DraCluster(SliceCluster, ClaimCluster, Protocol):
    """The API server, as far as drivers need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraNode:
    """What all drivers of a node share. ``generation`` numbers the lives of the daemon, ``boot`` is the host's."""

    claims: PreparedClaims
    slices: NodeSlices
    cluster: DraCluster
    live: LiveNode
    generation: Callable[[], int]
    boot: str = ""


class DraDriver:
    """A vendor's. One that is not ``offering`` lets claims end that were made ready before, and is ``idle`` then.

    ``cut`` makes partitions for claims, by the device type of their cards.
    """

    def __init__(
        self,
        vendor: str,
        settings: Settings,
        node: NodeState,
        shared: DraNode,
        guard: Guard,
        *,
        offering: bool,
        taints: str = Taints.OFF,
        sets: bool = False,
    ) -> None:
        self.driver = driver_name(vendor)
        self.offering = offering
        self.sources: list[FamilySource] = []
        self.cut: dict[str, Partitions] = {}
        self.idle = asyncio.Event()
        self._claims = shared.claims
        self._ledger = node.ledger
        self._health: Watched[tuple[DeviceHealth, ...]] = Watched(())
        self._preparer = ClaimPreparer(
            self.driver,
            self.sources,
            node,
            shared.claims,
            ClaimFiles(self.driver, settings.cdi_dirs[-1], node.host),
            guard=guard,
            cluster=shared.cluster,
            taken=self._taken,
            accepting=offering,
            boot=shared.boot,
            cut=self.cut,
        )
        self._publisher = SlicePublisher(
            self.driver,
            self.sources,
            shared.cluster,
            shared.slices,
            node=shared.live,
            node_name=settings.node_name,
            events=node.events,
            withheld=self._withheld,
            held=self._held,
            taints=Taints(taints),
            sets=sets,
            cut=self.cut,
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

    async def run(self) -> None:
        """Serve; or, not offering, until the last claim has ended."""
        left = self._claims.of(self.driver)
        if not self.offering and not left:
            self.idle.set()
            return
        await self._preparer.restore()
        if self.offering:
            await self._together(self._preparer.run, self._endpoint_run, self._publisher.run, self._show_health)
        else:
            log.warning("claims are left", driver=self.driver, claims=[one.claim for one in left][:5])
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
        self.idle.set()

    async def _show_health(self) -> None:
        """The health of all devices, as it changes."""
        async with asyncio.TaskGroup() as group:
            every: list[Watched[Any]] = [self._claims.changes, *(source.snapshot for source in self.sources)]
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
        cards = {device.uuid: device for one in self.sources for device in one.snapshot.value.devices}
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
        """Each component with its problem, which is empty when the component is ready."""
        if self.offering:
            yield f"driver {self.driver}", self.endpoint.problem
            yield f"slices {self.driver}", self._publisher.problem
            yield f"claims {self.driver}", self._preparer.problem
        elif left := self._claims.of(self.driver):
            yield (
                f"claims {self.driver}",
                f"the device plugin waits for the end of {_named([one.claim for one in left])}",
            )

    def shown(self) -> Mapping[str, Any]:
        """What it publishes, what is prepared and what was refused, for ``hami-plugin dra``."""
        slices, generation, devices = self._publisher.published
        problems = [problem for _component, problem in self.problems() if problem]
        return {
            "driver": self.driver,
            "offering": self.offering,
            "registered": self.offering and self.endpoint.registered,
            "slices": slices,
            "generation": generation,
            "devices": devices,
            "problems": problems,
            "limitation": self._publisher.limitation if self.offering else "",
            **self._preparer.shown(),
        }

    async def forget(self, uid: str) -> str:
        """Release what is prepared for a claim that the kubelet has forgotten. Answers why not."""
        return await self._preparer.forget(uid)

    @property
    def registered(self) -> bool:
        """Whether the kubelet has the driver, if it is to have it."""
        return not self.offering or self.endpoint.registered


def _health_of(name: str, devices: Sequence[Device]) -> DeviceHealth:
    worst = min(devices, key=lambda one: (one.health.offered, not one.reason))
    return DeviceHealth(device=name, healthy=worst.health.offered, message=f"{worst.reason} {worst.message}".strip())


def claims_document(drivers: Sequence[DraDriver], node: str) -> Mapping[str, Any]:
    """All drivers of a node with their claims, as JSON has it."""
    shown = [driver.shown() for driver in drivers]
    return {
        "node": node,
        "drivers": [{key: one[key] for key in one if key not in {"claims", "refused"}} for one in shown],
        "claims": [claim for one in shown for claim in one["claims"]],
        "refused": [refusal for one in shown for refusal in one["refused"]],
    }


def _named(claims: Sequence[str]) -> str:
    return f"{len(claims)} claims, such as {claims[0]}" if len(claims) > 1 else f"ResourceClaim {claims[0]}"
