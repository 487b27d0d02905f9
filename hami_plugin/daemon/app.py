"""The daemon's process, from its signals to its end, and the ``Daemon`` that serves the node at each moment.

A ``Daemon`` serves the node once, from the moment it gets the node until it gives it away. The process makes another
one for a changed configuration, and when it gets the node back from a successor that failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_plugin.cluster.client import ApiServer, connect
from hami_plugin.config.changes import Reloads
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.dra import claims_document
from hami_plugin.daemon.front_ends import FrontEnds, decide, open_vendors
from hami_plugin.daemon.node import DaemonProcess, ServedNode
from hami_plugin.daemon.reload import Reloader, Succession, Turn
from hami_plugin.daemon.serving import partitions_document
from hami_plugin.daemon.startup import report_handover, report_unlimited, tidy_specs
from hami_plugin.daemon.takeover import SERVE_S, NodeClaim, Peer
from hami_plugin.errors import HamiError
from hami_plugin.node_status.status import empty_status
from hami_plugin.process.concurrency import cancel, poll_condition
from hami_plugin.process.log import logger
from hami_plugin.telemetry.connections import raise_descriptor_limit
from hami_plugin.telemetry.http import Probes, TelemetryServer
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.telemetry.process_metrics import ConfigurationMetrics, ScrapedMetrics

log = logger(__name__)

DRAIN_S = 10.0
"""How long a successor may wait for the kubelet's calls that this process is answering."""
SETTLE_S = 1.0
"""How long it may wait for the API server to take what was handed out."""
REGISTER_S = 30.0
"""How long a predecessor streams on for a resource that the kubelet does not take."""
LINGER_S = 1.0
"""How long a predecessor streams on once the kubelet has our devices. A kubelet that chose it just before calls it a
moment later, which is long on a busy machine: a second is hundreds of turns of the system's scheduler. Nobody waits for
it, as both answer meanwhile.
"""


class End(Enum):
    """How a daemon ended, where no other process has taken the node over."""

    STOPPED = auto()
    REPLACED = auto()
    """Another daemon of this process serves the node, with another configuration."""


class Daemon:
    """Has what serves the ``node`` run. ``run`` raises when a part fails unexpectedly.

    ``predecessor`` is the process's own former daemon, whose streams are still open.
    ``turn`` is how this one comes to have the node, if another one of this process has it.
    """

    def __init__(
        self,
        process: DaemonProcess,
        cluster: ApiServer,
        metrics: Metrics,
        claim: NodeClaim,
        *,
        predecessor: Daemon | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.node = ServedNode(process, cluster, metrics, claim.lock)
        self._claim = claim
        self._turn: Turn = turn or claim
        self._predecessor = predecessor
        self._wanted = asyncio.Event()
        self._gave: asyncio.Future[str] | None = None
        self._awaited: AbstractSet[str] = frozenset()
        self._relieved = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> Peer | End:
        """Serve the node, once it is this process's, until ``stop``; or until a successor may have it: answers whom.

        In that case nothing writes any more. The kubelet's streams are open, and its calls are passed on or wait, until
        ``end``.
        """
        try:
            outcome = await self._serve(stop)
        finally:
            self._answer("the daemon has ended")
        return outcome

    async def _serve(self, stop: asyncio.Event) -> Peer | End:
        try:
            successor = await self._run(stop)
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1 and isinstance(error := errors.exceptions[0], HamiError):
                raise error from errors
            raise
        if successor is not End.STOPPED:
            await self.node.state.written()  # otherwise this process ends, and the next one reads what the disk has
            self._closing = asyncio.create_task(
                self.node.serving.release(self.node.settlement.close), name="drivers' end"
            )
        await self.node.state.close()
        if successor is End.REPLACED:
            self._answer("")
        return successor

    def _answer(self, why: str) -> None:
        """Say to a daemon that wants the node whether it has it: why not."""
        gave, self._gave = self._gave, None
        if gave and not gave.done():
            gave.set_result(why)

    async def give_way(self) -> str:
        """Let another daemon of this process have the node, with the sockets and what the kubelet asks: why not."""
        if not self.node.begun:
            return "the daemon is starting"
        self._gave = asyncio.get_running_loop().create_future()
        self._wanted.set()
        return await self._gave

    async def _run(self, stop: asyncio.Event) -> Peer | End:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work, name=name) for name, work in self.node.serving.discover()]
            successor: Peer | End = End.STOPPED
            if await self._turn.take(stop, self._can_serve):
                await self._begin()
                work = {**self.node.work(), "relief": self._relieve()}
                tasks += [group.create_task(one, name=name) for name, one in work.items()]
                async with self._claim.listening(self.node.serving.driver_problems):
                    successor = await self._until_replaced(stop)
            if successor is End.STOPPED:
                if self.node.begun:
                    log.info("stopping")
                await self.node.serving.close(self.node.settlement.close)
                if not isinstance(self._turn, Succession) or self._turn.given:
                    await self._end_predecessor()
            for task in tasks:
                task.cancel()
            await self.node.serving.cut_no_more()
        return successor

    async def released(self) -> None:
        """What this daemon used of the host is free: its drivers are closed, or were given up."""
        if self._closing:
            await self._closing

    async def end(self) -> None:
        """Nobody needs this daemon's streams any more."""
        await self._end_predecessor()
        await self.node.serving.end_streams()
        await self.released()

    async def _end_predecessor(self) -> None:
        former, self._predecessor = self._predecessor, None
        if former:
            await former.end()

    async def _begin(self) -> None:
        """The node is this process's: read what its former lives have left."""
        node, former = self.node, self._predecessor
        node.directory.generation = self._claim.lock.generation
        if isinstance(self._turn, Succession) and former:
            node.inherit(former.node)
            self._awaited = former.working
        elif self._succeeds:
            node.directory.succeeding_until = time.monotonic() + 2 * SERVE_S
            self._awaited = (former or self).working
        shares, claims = node.state.load()
        log.info("journal read", shares=shares, claims=claims, generation=node.directory.generation)
        await node.recovery.ask()
        report_handover(node.vendors, node.events)
        report_unlimited(source.family for source in node.serving.sources)
        tidy_specs(node.settings.cdi_dirs[-1], node.serving.kinds)
        node.begun = True

    async def _until_replaced(self, stop: asyncio.Event) -> Peer | End:
        """Wait for a successor, and end the calls that run."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while True:
                asked, wanted = asyncio.ensure_future(self._claim.asked()), asyncio.ensure_future(self._wanted.wait())
                await asyncio.wait((stopped, asked, wanted), return_when=asyncio.FIRST_COMPLETED)
                successor = asked.result() if asked.done() else None
                asked.cancel()
                wanted.cancel()
                if stopped.done():
                    if successor:
                        successor.close()
                    return End.STOPPED
                if successor:
                    log.info("handing over", successor=successor.name)
                    if why := await self._drained(self.node.serving.leave):
                        await self._claim.refuse(successor, why)
                    else:
                        return successor
                elif self._wanted.is_set():
                    self._wanted.clear()
                    if why := await self._drained(self.node.serving.hold):
                        self._answer(why)
                    else:
                        return End.REPLACED
        finally:
            stopped.cancel()

    async def _drained(self, leave: Callable[[], None]) -> str:
        """``leave`` what the kubelet asks from now on to others, and finish the rest. Answers why this cannot be."""
        leave()
        self.node.resizer.closed = "another daemon takes this node over"
        if not await poll_condition(lambda: not self.node.serving.running and self.node.resizer.idle, within=DRAIN_S):
            why = f"a call has been running for {DRAIN_S:g} s"
        else:
            await poll_condition(
                lambda: self.node.settlement.idle, within=SETTLE_S
            )  # the successor records what is left
            try:
                await self.node.state.written()
            except OSError as error:
                why = f"the journal cannot be written: {error}"
            else:
                return ""
        self.node.resizer.closed = ""
        self.node.serving.stay()
        return why

    async def _relieve(self) -> None:
        """Let the predecessor's streams end, once the kubelet has ours, and no call that it passed on would break.

        A driver that worked before, and fails for the moment, is waited for: till then the predecessor's list stands.
        """
        await poll_condition(lambda: self.node.serving.registered(self._awaited), within=REGISTER_S)
        if self._succeeds:
            await asyncio.sleep(LINGER_S)
        await poll_condition(lambda: not self.node.serving.running, within=DRAIN_S)
        live = self.node.live.value
        async with self.node.serving.kept(live.kubelet if self._succeeds and live else ""):
            await self._end_predecessor()
            self.node.directory.inherited.clear()
            await self._claim.relieve()
        self._relieved.set()
        await poll_condition(lambda: self.node.registration.settled, within=REGISTER_S)
        await asyncio.to_thread(_give_memory_back)

    @property
    def _succeeds(self) -> bool:
        """Whether a predecessor has streams and sockets of its own, beside ours."""
        former = self._predecessor or self._claim.predecessor
        return former is not None and not isinstance(self._turn, Succession)

    @property
    def working(self) -> AbstractSet[str]:
        """The vendors whose devices are known."""
        return {vendor for vendor, problem in self.node.serving.driver_problems().items() if not problem}

    def _can_serve(self) -> dict[str, str] | None:
        return self.node.serving.driver_problems() if self.node.serving.discovered else None

    def driver_problems(self) -> Mapping[str, str]:
        """Why each vendor's devices are not known; empty for one whose are."""
        return self.node.serving.driver_problems()

    @property
    def settled(self) -> bool:
        """Whether the kubelet has what this daemon offers, so that nobody waits for a former one any more."""
        return self._relieved.is_set()

    @property
    def unsettled(self) -> str:
        """Why the configuration cannot change just now; empty when it can."""
        if not self._relieved.is_set():
            return "the daemon is starting"
        if why := self.node.cluster.reachable.value:  # a new daemon would know none of the pods that wait
            return f"the API server is away: {why}"
        return ""

    def isolated(self) -> list[str]:
        """The vendors whose drivers have processes of their own."""
        return [served.vendor.name for served in self.node.vendors if served.isolated]

    def left_out(self, former: Daemon) -> tuple[set[str], set[str]]:
        """The vendors and the resources of a former daemon that this one does not serve."""
        vendors, resources = former.serves()
        kept = self.serves()
        return vendors - kept[0], resources - kept[1]

    def serves(self) -> tuple[set[str], set[str]]:
        """Vendors and resources."""
        vendors = {one.discovery.vendor for one in self.node.serving.vendors}
        return vendors, {one.plugin.resource for one in self.node.serving.resources}

    def readiness(self) -> dict[str, str]:
        """Each component's problem; empty when it is ready."""
        if not self.node.begun:
            return self._standing_by()
        return self.node.problems()

    def shown(self) -> tuple[Collector, ...]:
        """The present state as metrics, read at each scrape."""
        return self.node.shown(self.readiness)

    def _standing_by(self) -> dict[str, str]:
        """A rolling update ends the present daemon when this one is ready, and one that cannot hand over waits for
        that.
        """
        if self._claim.replaces_mute and self.node.serving.discovered:
            return {f"driver {vendor}": problem for vendor, problem in self.node.serving.driver_problems().items()}
        return {"daemon": self._claim.waiting or "starting"}


def _give_memory_back() -> None:
    """To the system: what only the start needed, which on a large node is some MiB. By itself glibc keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps less
    if trim:
        trim(0)


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
