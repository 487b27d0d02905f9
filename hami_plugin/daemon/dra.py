"""One vendor's DRA driver, beside the device plugin, over the same devices.

A vendor's cards are offered in one of both ways. What containers still have in the other way is left to them: cards by
the device plugin are not published, and with claims left the device plugin waits, while the driver lets them end.

What serves claims is imported where there are any: no other node has the memory for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hami_plugin.allocation.capacity import NodeState
from hami_plugin.config.settings import Settings
from hami_plugin.dra.prepared import ClaimFiles, PreparedClaims
from hami_plugin.dra.slices import Taints, device_name, driver_name, slice_view
from hami_plugin.model.device import Device
from hami_plugin.node_status.registration import FamilySource, LiveNode
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.vendor_boundary.guard import Guard

if TYPE_CHECKING:
    from hami_plugin.cluster.client import ApiServer
    from hami_plugin.dra.publisher import NodeSlices
    from hami_plugin.kubelet.dra import DeviceHealth
    from hami_plugin.partitions.manager import Partitions

log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class DraNode:
    """What all drivers of a node share. ``generation`` numbers the lives of the daemon, ``boot`` is the host's."""

    claims: PreparedClaims
    cluster: ApiServer
    live: LiveNode
    generation: Callable[[], int]
    boot: str = ""

    @cached_property
    def slices(self) -> NodeSlices:
        """All ResourceSlices of the node, of whatever driver."""
        from hami_plugin.dra.publisher import NodeSlices  # noqa: PLC0415  # see above

        return NodeSlices()

    async def follow_slices(self) -> None:
        """Watch them. Clusters before Kubernetes 1.34 have none."""
        await self.cluster.follow_slices(self.slices.feed, slice_view)


class ClaimServer:
    """Serves a vendor's claims. One that is not ``offering`` lets claims end that were made ready before.

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
        from hami_plugin.dra.preparing import ClaimPreparer  # noqa: PLC0415  # loaded where there are claims to serve
        from hami_plugin.dra.publisher import SlicePublisher  # noqa: PLC0415  # as above
        from hami_plugin.kubelet.dra import DraEndpoint  # noqa: PLC0415  # as above

        self.driver = driver
        self._sources = sources
        self._claims = shared.claims
        self._ledger = node.ledger
        self._health: Watched[tuple[DeviceHealth, ...]] = Watched(())
        self.preparer = ClaimPreparer(
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
        self.publisher = SlicePublisher(
            self.driver,
            sources,
            shared.cluster,
            shared.slices,
            node=shared.live,
            node_name=settings.node_name,
            events=node.events,
            withheld=lambda: self._taken().keys(),
            held=self._held,
            taints=Taints(taints),
            sets=sets,
            cut=cut,
            observer=node.observer,
        )
        self.endpoint = DraEndpoint(
            self.driver,
            settings.node_name,
            self.preparer,
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

    def _held(self) -> AbstractSet[str]:
        return {share.device for one in self._claims.of(self.driver) for share in one.shares}

    async def offer(self) -> None:
        """Serve."""
        await self.preparer.restore()
        await self._together(
            claims=self.preparer.run, endpoint=self.endpoint.run, slices=self.publisher.run, health=self._show_health
        )

    async def let_end(self) -> None:
        """Serve until the last claim has ended."""
        await self.preparer.restore()
        await self._together(claims=self.preparer.run, endpoint=self.endpoint.run, end=self._until_idle)

    async def _together(self, **work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """All of it, until the first one ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(), name=f"{self.driver} {name}") for name, run in work.items()]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

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
        yield f"slices {self.driver}", self.publisher.problem
        yield f"claims {self.driver}", self.preparer.problem


def _health_of(name: str, devices: Sequence[Device]) -> DeviceHealth:
    from hami_plugin.kubelet.dra import DeviceHealth  # noqa: PLC0415  # as above

    worst = min(devices, key=lambda one: (one.health.offered, not one.reason))
    return DeviceHealth(device=name, healthy=worst.health.offered, message=f"{worst.reason} {worst.message}".strip())


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
        taints: str = "off",
        sets: bool = False,
    ) -> None:
        self.driver = driver_name(vendor)
        self.offering = offering
        self.sources: list[FamilySource] = []
        self.cut: dict[str, Partitions] = {}
        self.idle = asyncio.Event()
        self._claims = shared.claims
        self._new_server = partial(
            ClaimServer,
            self.driver,
            settings,
            node,
            shared,
            guard,
            sources=self.sources,
            cut=self.cut,
            offering=offering,
            taints=taints,
            sets=sets,
        )
        self._server: ClaimServer | None = self._new_server() if offering else None

    async def run(self) -> None:
        """Serve; or, not offering, until the last claim has ended."""
        if self._server and self.offering:
            await self._server.offer()
            return
        if left := self._claims.of(self.driver):
            log.warning("claims are left", driver=self.driver, claims=[one.claim for one in left][:5])
            self._server = self._server or self._new_server()
            await self._server.let_end()
        self.idle.set()

    def look(self) -> None:
        """A pod has ended: what it had may be published."""
        if self._server:
            self._server.publisher.look()

    def leave(self) -> None:
        """A successor serves from now on."""
        if self._server:
            self._server.endpoint.leave()

    def stay(self) -> None:
        """Answer the kubelet again."""
        if self._server:
            self._server.endpoint.stay()

    async def close(self) -> None:
        """End what the kubelet listens to."""
        if self._server:
            await self._server.endpoint.close()

    @property
    def running(self) -> int:
        """Calls of the kubelet that are being answered."""
        return self._server.endpoint.running if self._server else 0

    @property
    def registered(self) -> bool:
        """Whether the kubelet has the driver, if it is to have it."""
        return not self.offering or self._listed

    @property
    def _listed(self) -> bool:
        return self._server is not None and self._server.endpoint.registered

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        if self._server and self.offering:
            yield from self._server.problems()
        elif left := self._claims.of(self.driver):
            yield (
                f"claims {self.driver}",
                f"the device plugin waits for the end of {_named([one.claim for one in left])}",
            )

    def shown(self) -> Mapping[str, Any]:
        """What it publishes, what is prepared and what was refused, for ``hami-plugin dra``."""
        server = self._server
        slices, generation, devices = server.publisher.published if server else (0, 0, 0)
        return {
            "driver": self.driver,
            "offering": self.offering,
            "registered": self.offering and self._listed,
            "slices": slices,
            "generation": generation,
            "devices": devices,
            "problems": [problem for _component, problem in self.problems() if problem],
            "limitation": server.publisher.limitation if server and self.offering else "",
            **(server.preparer.shown() if server else {"claims": [], "refused": []}),
        }

    async def forget(self, uid: str) -> str:
        """Release what is prepared for a claim that the kubelet has forgotten. Answers why not."""
        return await self._server.preparer.forget(uid) if self._server else "the daemon is starting; ask again"


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
