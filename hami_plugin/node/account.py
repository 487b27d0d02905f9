"""The kubelet's own account of who holds devices, beside what was handed out. It is asked for when somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from hami_plugin.errors import HamiError
from hami_plugin.model.ports import Holder
from hami_plugin.node.ledger import Ledger
from hami_plugin.policy.identity import Held


class Holdings(Protocol):
    """The kubelet's whole account."""

    async def everything(self) -> Mapping[str, tuple[Holder, ...]]:
        """Every container that holds devices, by resource. ``HamiError`` when the kubelet cannot be asked."""


class Account:
    """The last answer. Nobody asks a kubelet while nothing is handed out; ``deadline`` in seconds."""

    def __init__(self, holdings: Holdings, ledger: Ledger, *, deadline: float = 1.0) -> None:
        self._holdings = holdings
        self._ledger = ledger
        self._deadline = deadline
        self._known: frozenset[tuple[object, ...]] | None = frozenset()
        self._asking = asyncio.Lock()

    @property
    def readable(self) -> bool:
        """Whether the kubelet answered when it was asked last."""
        return self._known is not None

    async def refresh(self) -> None:
        """Ask anew, and wait for the answer at most until the deadline. Without one, nothing is confirmed or denied."""
        async with self._asking:
            if not self._ledger.held:
                self._known = frozenset()
                return
            try:
                async with asyncio.timeout(self._deadline):
                    told = await self._holdings.everything()
            except (HamiError, TimeoutError):
                self._known = None
                return
        self._known = frozenset(
            (resource, one.namespace, one.pod, one.container, one.ids)
            for resource, holders in told.items()
            for one in holders
        )

    def confirms(self, held: Held) -> bool | None:
        """Whether the kubelet says that this container has exactly these ids. None: it does not tell.

        Plain init containers are never in its account.
        """
        if self._known is None or held.init:
            return None
        return (held.resource, held.namespace, held.pod, held.container, held.ids) in self._known
