"""One daemon, from the moment it gets the node until it gives it away.

A ``Daemon`` serves the node once. Its process, in ``life``, makes another one for a changed configuration, and when it
gets the node back from a successor that failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum, auto

from prometheus_client.registry import Collector

from hami_plugin.cluster.client import ApiServer
from hami_plugin.daemon.node import DaemonProcess, ServedNode
from hami_plugin.daemon.reload import Succession, Turn
from hami_plugin.daemon.startup import report_handover, report_unlimited, tidy_specs
from hami_plugin.daemon.takeover import SERVE_S, NodeClaim, Peer
from hami_plugin.errors import HamiError
from hami_plugin.process.concurrency import poll_condition
from hami_plugin.process.log import logger
from hami_plugin.telemetry.metrics import Metrics

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
