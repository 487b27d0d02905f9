"""The life of the daemon's process, from its signals to its end: which ``Daemon`` serves the node at each moment."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from hami_plugin.cluster.client import ApiServer, connect
from hami_plugin.config.changes import Reloads
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.app import Daemon, End
from hami_plugin.daemon.dra import claims_document
from hami_plugin.daemon.front_ends import FrontEnds, decide, open_vendors
from hami_plugin.daemon.node import DaemonProcess
from hami_plugin.daemon.reload import Reloader, Succession
from hami_plugin.daemon.serving import partitions_document
from hami_plugin.daemon.takeover import NodeClaim, Peer
from hami_plugin.errors import HamiError
from hami_plugin.node_status.status import empty_status
from hami_plugin.process.concurrency import cancel
from hami_plugin.process.log import logger
from hami_plugin.telemetry.connections import raise_descriptor_limit
from hami_plugin.telemetry.http import Probes, TelemetryServer
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.telemetry.process_metrics import ConfigurationMetrics, ScrapedMetrics

log = logger(__name__)

LOOK_S = 0.05
"""How often the progress of a new configuration is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Successor:
    """A daemon that is to take the place of another one of this process, and its task."""

    daemon: Daemon
    task: asyncio.Task[Peer | End]


class Life:
    """A process's life: it serves the node, hands it over, stands by, and serves again when its successor fails.

    What it answers to probes and scrapes is about the daemon of the moment. As its ``reloader`` finds a changed
    configuration, another daemon takes the place of the one that serves.
    """

    def __init__(self, process: DaemonProcess, metrics: Metrics) -> None:
        self._process = process
        self._metrics = metrics
        self._claim = NodeClaim(process.configuration.settings.state_dir)
        self._daemon: Daemon | None = None
        self._handed_over = False
        self._frozen: Mapping[str, str] | None = None
        self._next: _Successor | None = None
        self._stop = asyncio.Event()
        self.reloads = Reloads()
        self.reloader = Reloader(process.source, self, self.reloads) if process.source else None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``."""
        self._stop = stop
        tasks = [asyncio.create_task(self._live(stop), name="daemon")]
        if self.reloader:
            tasks.append(asyncio.create_task(self.reloader.run(), name="configuration"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._next:
                await cancel(self._next.task)
            for task in reversed(tasks):
                if not task.done():
                    await cancel(task)
        for task in tasks:
            if not task.cancelled():
                task.result()
        self._claim.lock.release()

    async def _live(self, stop: asyncio.Event) -> None:
        former: Daemon | None = None
        while not stop.is_set():
            daemon, outcome = await self._serve_once(stop, former)
            former = None
            while outcome is End.REPLACED:
                assert self._next
                successor, self._next = self._next, None
                daemon, outcome = successor.daemon, await successor.task
            self._daemon = None
            if isinstance(outcome, Peer):
                self._handed_over = True
                if await self._claim.stand_by(outcome, stop, daemon.end):
                    await daemon.released()  # a vendor's library is one for the process: its end would end the next one
                    former = daemon
                else:
                    await daemon.end()
                self._handed_over = False

    async def _serve_once(self, stop: asyncio.Event, former: Daemon | None) -> tuple[Daemon, Peer | End]:
        process = self._process
        async with self._connected(process) as cluster:
            # Each vendor lists its families, which may take a while; signals are handled meanwhile.
            daemon = await asyncio.to_thread(Daemon, process, cluster, self._metrics, self._claim, predecessor=former)
            self._daemon = daemon
            try:
                return daemon, await daemon.run(stop)
            finally:
                if self._next is None:
                    self._daemon = None

    def _connected(self, process: DaemonProcess) -> AbstractAsyncContextManager[ApiServer]:
        node = process.configuration.settings.node_name
        return connect(node, kubeconfig=process.kubeconfig, observer=self._metrics)

    @property
    def configuration(self) -> Configuration:
        """The one in force."""
        return self._process.configuration

    def busy(self) -> str:
        """Why the configuration cannot change just now. A process that has handed the node over changes it at once."""
        if self._handed_over:
            return ""
        return self._daemon.unsettled if self._daemon else "the daemon is starting"

    def claimed(self) -> list[str]:
        """The vendors whose devices are offered or held by ResourceClaims."""
        return self._daemon.node.serving.claimed if self._daemon else []

    def isolated(self) -> list[str]:
        """The vendors whose drivers have processes of their own."""
        return self._daemon.isolated() if self._daemon else []

    def adopt(self, configuration: Configuration) -> None:
        """What the next daemon of this process is made of."""
        self._process = replace(self._process, configuration=configuration)

    def tell(self, reason: str, message: str, *, warning: bool) -> None:
        """An Event about the node, if a daemon serves it."""
        if self._daemon:
            self._daemon.node.events.node(reason, message, warning=warning)

    async def replace(self, configuration: Configuration) -> str:
        """Serve with this configuration from now on. Answers why not; then the former one is still in force."""
        former = self._daemon
        if former is None or self._handed_over:
            self.adopt(configuration)
            return ""
        process = replace(self._process, configuration=configuration)
        turn = Succession(former)
        ready = dict(former.readiness())

        def taken() -> None:
            """From here on it is the new daemon that answers; to probes once the kubelet has what it offers."""
            assert self._next
            self._process, self._daemon, self._frozen = process, self._next.daemon, ready

        turn.taken = taken
        task = asyncio.create_task(self._succeed(process, former, turn), name="new configuration")
        try:
            while not task.done() and not (self._daemon and self._daemon is not former and self._daemon.settled):
                await asyncio.wait((task,), timeout=LOOK_S)
        finally:
            self._frozen = None
            if not turn.given:
                self._next = None
                await cancel(task)
        if turn.given:
            if self._daemon:
                self._metrics.forget(*self._daemon.left_out(former))
            del former, ready
            gc.collect()  # the former daemon's threads end with it; what the start made is not looked through
            return ""
        if task.cancelled():
            return "the daemon is stopping"
        match task.exception():
            case None:
                return turn.refused
            case HamiError() as error:
                return str(error)
            case error:
                log.error("the new configuration failed unexpectedly", exc_info=error)
                return f"an unexpected error, {type(error).__name__}; the log has more"

    async def _succeed(self, process: DaemonProcess, former: Daemon, turn: Succession) -> Peer | End:
        """A daemon with another configuration, from its building to its end."""
        async with self._connected(process) as cluster:
            daemon = await asyncio.to_thread(
                Daemon, process, cluster, self._metrics, self._claim, predecessor=former, turn=turn
            )
            task = asyncio.current_task()
            assert task
            self._next = _Successor(daemon=daemon, task=task)
            return await daemon.run(self._stop)

    def shown(self) -> Iterable[Metric]:
        """The present state as metrics, read at each scrape."""
        for collector in self._daemon.shown() if self._daemon else ():
            yield from collector.collect()

    def ready(self) -> dict[str, str]:
        """The problems of the daemon. A process that has handed the node over has none."""
        if self._handed_over:
            return {self._claim.waiting: ""}
        if self._frozen is not None:
            return dict(self._frozen)
        return self._daemon.readiness() if self._daemon else {"daemon": "starting"}

    def stalled(self) -> list[str]:
        """The daemon's loops that have stopped turning."""
        return self._daemon.node.stalled() if self._daemon else []

    def effective(self) -> Mapping[str, object]:
        """The configuration in force, every key."""
        return self._process.configuration.effective()

    def document(self, name: str) -> Mapping[str, object]:
        """What a command on this host reads; empty while another process has the node."""
        node = self.configuration.settings.node_name
        return self._daemon.node.documents[name]() if self._daemon else _nobodys(node)[name]

    def status(self) -> Mapping[str, Any]:
        """The node's whole state, made when somebody looks."""
        shown = self._daemon.node.status() if self._daemon else empty_status(self.configuration.settings.node_name)
        return {
            **shown,
            "version": self._process.version,
            "time": time.time(),
            "components": self.ready(),
            "configuration": self.reloads.shown(),
        }

    async def forget_claim(self, uid: str) -> Mapping[str, object]:
        """Release a claim that the kubelet has forgotten."""
        if self._daemon is None or self._handed_over:
            return {"forgotten": False, "why": "another daemon serves this node"}
        return await self._daemon.node.forget_claim(uid)

    async def resize(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what a container that runs may use of its devices."""
        if self._daemon is None or self._handed_over:
            return {"resized": False, "why": "another daemon serves this node; ask again"}
        return await self._daemon.node.resize(request)

    async def refresh(self) -> None:
        """Read what the daemon's metrics show."""
        if self._daemon:
            await self._daemon.node.account.refresh()


def _nobodys(node: str) -> Mapping[str, Mapping[str, object]]:
    """The documents of a process that does not have the node."""
    return {
        "usage": {"node": node, "devices": []},
        "partitions": partitions_document((), node),
        "faults": {"node": node, "devices": []},
        "claims": claims_document((), node),
    }


async def serve(process: DaemonProcess) -> None:
    """Run the daemon until SIGTERM or SIGINT. SIGHUP has the configuration judged anew."""
    _spare_the_collector()
    raise_descriptor_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = Metrics(registry, version=process.version, log_lines_dropped=process.log_lines_dropped)
    settings = process.configuration.settings
    process = await decide_front_ends(process, metrics, stop.set)
    life = Life(process, metrics)
    if life.reloader:
        loop.add_signal_handler(signal.SIGHUP, life.reloader.again)
    registry.register(ScrapedMetrics(life.shown))
    registry.register(ConfigurationMetrics(lambda: life.reloads))
    probes = Probes(
        registry=registry,
        alive=life.stalled,
        ready=life.ready,
        details=lambda: {"configuration": life.reloads.shown()},
        status=life.status,
        status_readers=lambda: life.configuration.settings.status_page,
        configuration=life.effective,
        documents={name: partial(life.document, name) for name in _nobodys("")},
        forget_claim=life.forget_claim,
        resize=life.resize,
        refresh=life.refresh,
    )
    http = TelemetryServer(settings.http_host, settings.http_port, probes, dropped=metrics.connection_dropped)
    await http.start()
    try:
        await life.run(stop)
    finally:
        await http.stop()


async def decide_front_ends(process: DaemonProcess, metrics: Metrics, again: Callable[[], None]) -> DaemonProcess:
    """The process with the front ends that its settings leave open, decided for its life."""
    configuration = process.configuration
    if not open_vendors(configuration):
        return process
    node = configuration.settings.node_name
    async with connect(node, kubeconfig=process.kubeconfig, observer=metrics) as cluster:
        chosen, able = await decide(configuration, cluster)
    return replace(process, front_ends=FrontEnds(chosen=chosen, unable=able, again=again))


def _spare_the_collector() -> None:
    """What was imported stays for good. A full collection that goes through it all holds up an Allocate by 40 ms."""
    gc.collect()
    gc.freeze()
