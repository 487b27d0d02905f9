"""One vendor's DRA driver, beside the device plugin, over the same devices.

A vendor's cards are offered in one of both ways. What containers still have in the other way is left to them: cards by
the device plugin are not published, and with claims left the device plugin waits, while the driver lets them end.

What serves claims is imported where there are any: no other node has the memory for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hami_plugin.allocation.capacity import NodeState
from hami_plugin.config.settings import Settings
from hami_plugin.dra.prepared import PreparedClaims
from hami_plugin.dra.slices import driver_name, slice_view
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.process.log import logger
from hami_plugin.vendor_boundary.guard import Guard

if TYPE_CHECKING:
    from hami_plugin.cluster.client import ApiServer
    from hami_plugin.daemon.claims import ClaimServer
    from hami_plugin.dra.publisher import NodeSlices
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
        self._new_server = partial(self._made, settings, node, shared, guard, taints=taints, sets=sets)
        self._server: ClaimServer | None = self._new_server() if offering else None

    def _made(
        self, settings: Settings, node: NodeState, shared: DraNode, guard: Guard, *, taints: str, sets: bool
    ) -> ClaimServer:
        from hami_plugin.daemon.claims import ClaimServer  # noqa: PLC0415  # see above

        return ClaimServer(
            self.driver,
            settings,
            node,
            shared,
            guard,
            sources=self.sources,
            cut=self.cut,
            offering=self.offering,
            taints=taints,
            sets=sets,
        )

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
            self._server.look()

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
        slices, generation, devices = server.published if server else (0, 0, 0)
        return {
            "driver": self.driver,
            "offering": self.offering,
            "registered": self.offering and self._listed,
            "slices": slices,
            "generation": generation,
            "devices": devices,
            "problems": [problem for _component, problem in self.problems() if problem],
            "limitation": server.limitation if server and self.offering else "",
            **(server.shown() if server else {"claims": [], "refused": []}),
        }

    async def forget(self, uid: str) -> str:
        """Release what is prepared for a claim that the kubelet has forgotten. Answers why not."""
        return await self._server.forget(uid) if self._server else "the daemon is starting; ask again"


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
