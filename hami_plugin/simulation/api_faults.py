"""What can go wrong at a simulated API server, switched on and off while it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What happens to a request that is hit."""

    ERROR = "error"
    HANG = "hang"
    TRUNCATE = "truncate"
    LOSE = "lose"
    EDIT = "edit"


@dataclass(slots=True, kw_only=True)
class Order:
    """Do ``fault`` to the next ``left`` requests (None: all) whose ``VERB /path`` matches ``match``."""

    fault: Fault
    match: re.Pattern[str]
    left: int | None
    status: int = 0
    message: str = ""
    retry_after: float | None = None
    edit: Callable[[bytes], bytes] = bytes


class Faults:
    """Orders in the order they were given. ``latency`` in seconds comes before everything else."""

    def __init__(self) -> None:
        self.latency = 0.0
        self._orders: list[Order] = []
        self._released = asyncio.Event()

    def add(self, order: Order) -> None:
        self._orders.append(order)

    def take(self, fault: Fault, request: str) -> Order | None:
        """The order that hits this request, used up by one."""
        for order in self._orders:
            if order.fault is fault and order.match.search(request):
                if order.left is not None:
                    order.left -= 1
                    if order.left <= 0:
                        self._orders.remove(order)
                return order
        return None

    async def hang(self) -> None:
        """Wait until ``clear``."""
        await self._released.wait()

    def clear(self) -> None:
        """All is well again, also for requests that hang."""
        self.latency = 0.0
        self._orders.clear()
        self._released.set()
        self._released = asyncio.Event()
