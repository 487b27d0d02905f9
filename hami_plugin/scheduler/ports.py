"""What the scheduler process stands on: the protocols between its server, its decisions and the cluster."""

from __future__ import annotations

import asyncio
from typing import Protocol

from hami_plugin.scheduling.payloads import Json


class Extender(Protocol):
    """Whoever decides. The server in front of it reads requests, keeps deadlines and writes answers.

    A request is a JSON object as it was sent. ``WireError`` when it cannot be read, ``HamiError`` when no decision can
    be made now; what an object asks for is answered, never raised. A call that takes too long is cancelled, and must
    leave nothing behind that it can take back.
    """

    async def filter(self, request: Json) -> Json:
        """ExtenderArgs to ExtenderFilterResult."""

    async def bind(self, request: Json) -> Json:
        """ExtenderBindingArgs to ExtenderBindingResult."""

    async def review(self, request: Json) -> Json:
        """AdmissionReview with a request to AdmissionReview with a response."""

    def problems(self) -> tuple[str, ...]:
        """Why no decision should be asked for now; empty when ready."""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the cluster until ``stop``."""
