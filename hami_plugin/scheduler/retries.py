"""Calls to the API server that are worth another try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError

T = TypeVar("T")

PACE = Backoff(first=0.05, cap=1.0)
TRIES = 4


async def repeated(call: Callable[[], Awaitable[T]], *, pace: Backoff = PACE) -> T:
    """Call until it succeeds, a few times at most. ``ClusterError`` of the last time, or of one that no time mends."""
    for _try, delay in zip(range(TRIES - 1), pace.delays(), strict=False):
        try:
            return await call()
        except ClusterError as error:
            if not error.temporary:
                raise
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    return await call()
