"""A stand-in for the decisions behind the scheduler's port, which behaves, and the port in front of it."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from hami_plugin.config.settings import SchedulerSettings
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics
from hami_plugin.scheduler.extender.server import Server, kinds
from hami_plugin.telemetry.http import Probes

ARGS = {"Pod": {"metadata": {"name": "p", "namespace": "n"}}, "NodeNames": ["n1", "n2"]}
BINDING = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "n1"}
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}


@dataclass(eq=False)
class FakeExtender:
    """Takes the first node and admits every pod, after ``takes_s`` seconds; or raises ``fails``.

    ``gate`` holds every call back until it is set. ``full`` nodes are refused.
    """

    takes_s: float = 0.0
    fails: Exception | None = None
    full: Mapping[str, str] = field(default_factory=dict)
    unready: tuple[str, ...] = ()
    gate: asyncio.Event | None = None
    bound: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    cancelled: int = 0
    ran: bool = False
    dies: Exception | None = None

    async def filter(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._work()
        names = request.get("NodeNames") or [node["metadata"]["name"] for node in request["Nodes"]["items"]]
        left = [name for name in names if name not in self.full][:1]
        return {"NodeNames": left, "FailedNodes": dict(self.full), "Error": ""}

    async def bind(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._work()
        self.bound.append(request["PodName"])
        return {"Error": ""}

    async def review(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._work()
        return {**request, "response": {"uid": request["request"]["uid"], "allowed": not self.full}}

    def problems(self) -> tuple[str, ...]:
        return self.unready

    async def run(self, stop: asyncio.Event) -> None:
        if self.dies:
            raise self.dies
        await stop.wait()
        self.ran = True

    async def _work(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate:
                await self.gate.wait()
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if self.fails:
            raise self.fails


@dataclass
class Rig:
    """A server that listens, and a client that asks it."""

    server: Server
    registry: CollectorRegistry
    session: aiohttp.ClientSession
    scheme: str = "http"

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.port}{path}"

    async def post(self, path: str, body: object, **more: Any) -> tuple[int, Any]:
        sent = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.post(self.url(path), data=sent, **more) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url(path)) as answer:
            return answer.status, await answer.text()

    async def counted(self, name: str, **labels: str) -> float:
        """The value of a series, as a scrape shows it; 0 where there is none."""
        _, text = await self.get("/metrics")
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"hami_plugin_scheduler_{name}" and sample.labels == labels
        ]
        return found[0] if found else 0.0


@asynccontextmanager
async def listening(
    extender: Extender,
    *,
    context: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
    registry: CollectorRegistry | None = None,
    metrics: SchedulerMetrics | None = None,
    **changes: Any,
) -> AsyncIterator[Rig]:
    """The real server on a free port. ``changes`` are settings under their names in code."""
    settings = SchedulerSettings.model_validate({"listen_host": "127.0.0.1", "listen_port": 0, **changes})
    registry = registry or CollectorRegistry()
    metrics = metrics or SchedulerMetrics(registry, version="1.2.3")
    probes = Probes(
        registry=registry,
        alive=tuple,
        ready=lambda: {"decisions": "; ".join(extender.problems())},
        configuration=lambda: settings.model_dump(mode="json", by_alias=True),
    )
    server = Server(
        host=settings.listen_host,
        port=settings.listen_port,
        kinds=kinds(extender, settings),
        probes=probes,
        metrics=metrics,
    )
    server._connections._header = 20.0  # dozens of callers at once have time to ask, however slow the machine is
    await server.start(context, stop_s=settings.stop_seconds)
    connector = aiohttp.TCPConnector(ssl=trust) if trust else aiohttp.TCPConnector()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), connector=connector) as session:
            yield Rig(server, registry, session, "https" if context else "http")
    finally:
        await server.stop()


def other_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(probe.getsockname()[0])
