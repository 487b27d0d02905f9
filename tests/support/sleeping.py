"""A module's ``asyncio`` whose ``sleep`` is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class Sleeping:
    """Everything as in ``asyncio``, but ``sleep`` (seconds) waits for what the test says."""

    def __init__(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)
