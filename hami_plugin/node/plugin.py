"""One resource as a kubelet endpoint serves it: offers that follow the devices, allocation, and the holder check."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hami_plugin.aio import Watched
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import Offer
from hami_plugin.node.allocation import Allocator
from hami_plugin.node.starts import StartCheck
from hami_plugin.protocol.decisions import Question


class ResourcePlugin:
    """A ``DevicePlugin``. ``check`` is None when the operator has turned the identity check off."""

    def __init__(self, allocator: Allocator, check: StartCheck | None, snapshot: Watched[Snapshot]) -> None:
        self._allocator = allocator
        self._check = check
        self._snapshot = snapshot
        self._offers: Watched[tuple[Offer, ...]] = Watched(allocator.offers())
        self.rendered = asyncio.Event()
        """Set once a snapshot with devices has been rendered."""

    @property
    def resource(self) -> str:
        return self._allocator.resource

    @property
    def question(self) -> Question:
        """How decisions about the resource are read from a pod."""
        return self._allocator.question

    @property
    def pre_start_required(self) -> bool:
        """Always: whoever holds the devices, the host must have what was promised."""
        return True

    @property
    def offers(self) -> Watched[tuple[Offer, ...]]:
        return self._offers

    async def follow(self) -> None:
        """Render every new snapshot into offers, until the snapshot is closed."""
        async for snapshot in self._snapshot.follow():
            self._offers.set(self._allocator.offers())
            if snapshot.devices:
                self.rendered.set()
        self._offers.close()
        self.rendered.set()

    async def allocate(self, ids: Sequence[str]) -> Answer:
        return await self._allocator.allocate(ids)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return await self._allocator.prefer(available, must_include, size)

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._allocator.require_host()
        if self._check is not None:
            await self._check.confirm(ids)
        else:
            await self._allocator.afresh(self._allocator.holders(ids))
