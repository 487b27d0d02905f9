"""The composition root of the scheduler process: from a configuration to a port that answers, and back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from hami_plugin.config.load import Configuration
from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.scheduler.calls import kinds
from hami_plugin.scheduler.certificates import Certificates
from hami_plugin.scheduler.http import Server
from hami_plugin.scheduler.metrics import Metrics
from hami_plugin.scheduler.ports import Extender
from hami_plugin.telemetry.http import Probes, TelemetryServer

log = logger(__name__)

PURPOSE = "can a pod be decided on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What differs per process. Without a kubeconfig, ``$KUBECONFIG``, else the pod's own account."""

    configuration: Configuration
    kubeconfig: Path | None = None
    version: str = ""
    log_lines_dropped: Callable[[], int] = lambda: 0


Connected = Callable[[Process, Metrics], AbstractAsyncContextManager[Extender]]


class Scheduler:
    """An extender behind its ports. ``run`` returns after ``stop``, and raises when a part fails unexpectedly."""

    def __init__(
        self, configuration: Configuration, extender: Extender, metrics: Metrics, registry: CollectorRegistry
    ) -> None:
        settings = configuration.settings.scheduler
        self._settings = settings
        self._extender = extender
        self._stopping = False
        self._certificates = None
        if settings.tls_cert and settings.tls_key:
            self._certificates = Certificates(
                settings.tls_cert, settings.tls_key, client_ca=settings.client_ca, metrics=metrics
            )
        probes = Probes(
            registry=registry,
            alive=tuple,
            ready=self.readiness,
            configuration=configuration.effective,
            purpose=PURPOSE,
        )
        self.server = Server(
            host=settings.listen_host,
            port=settings.listen_port,
            kinds=kinds(extender, settings),
            probes=probes,
            metrics=metrics,
        )
        self.plain = TelemetryServer(
            host=settings.http_host,
            port=settings.http_port,
            registry=registry,
            alive=tuple,
            ready=self.readiness,
            configuration=configuration.effective,
            purpose=PURPOSE,
        )

    def readiness(self) -> Mapping[str, str]:
        """Each component's problem; empty when it is ready. A bad new certificate is none while the old one serves."""
        return {
            "decisions": "; ".join(self._extender.problems()),
            "process": "stopping" if self._stopping else "",
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``: then be unready for a while, finish the calls that run, and end."""
        async with AsyncExitStack() as opened:
            pair = self._certificates.load() if self._certificates else None
            await self.plain.start()
            opened.push_async_callback(self.plain.stop)
            await self.server.start(pair.context if pair else None, stop_s=self._settings.stop_seconds)
            opened.push_async_callback(self.server.stop)
            log.info("listening", port=self.server.port, tls=pair is not None, probes=self.plain.port)
            await self._work(stop)

    async def _work(self, stop: asyncio.Event) -> None:
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            deciding = group.create_task(self._decide(ended), name="decisions")
            tasks = [deciding]
            if self._certificates:
                follow = self._certificates.follow(self.server.present, every=self._settings.reload_seconds)
                tasks.append(group.create_task(follow, name="certificates"))
            await stop.wait()
            log.info("stopping")
            self._stopping = True
            await asyncio.sleep(self._settings.linger_seconds)
            await self.server.stop()
            ended.set()
            await asyncio.wait([deciding], timeout=self._settings.stop_seconds)
            for task in tasks:
                task.cancel()

    async def _decide(self, ended: asyncio.Event) -> None:
        await self._extender.run(ended)
        if not ended.is_set():
            raise HamiError("the scheduler's view of the cluster ended by itself", hint="this is a bug; its log tells")


async def serve(process: Process, connected: Connected) -> None:
    """Run the scheduler until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = Metrics(registry, version=process.version, log_lines_dropped=process.log_lines_dropped)
    async with connected(process, metrics) as extender:
        await Scheduler(process.configuration, extender, metrics, registry).run(stop)
