"""The scheduler's answers: which node a pod goes to, binding it there, and whether it is admitted at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hami_plugin.scheduler.ports import Cluster
from hami_plugin.vendor import Family

Json = Mapping[str, Any]


class SchedulerService:
    """Answers kube-scheduler and the API server. ``run`` keeps what it knows of the cluster up to date."""

    def __init__(self, cluster: Cluster, families: Sequence[Family]) -> None:
        self._cluster = cluster
        self._families = tuple(families)

    async def filter(self, request: Json) -> Json:
        """ExtenderArgs in, ExtenderFilterResult out. WireError when the request cannot be read."""
        raise NotImplementedError

    async def bind(self, request: Json) -> Json:
        """ExtenderBindingArgs in, ExtenderBindingResult out. WireError when the request cannot be read."""
        raise NotImplementedError

    async def review(self, request: Json) -> Json:
        """An AdmissionReview with its request in, one with its response out. WireError when it cannot be read."""
        raise NotImplementedError

    def problems(self) -> tuple[str, ...]:
        """Why no pod can be decided on at present; empty when one can."""
        raise NotImplementedError

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the cluster until ``stop`` is set."""
        raise NotImplementedError
