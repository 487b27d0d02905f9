"""The composition root: from a configuration to one running daemon. The only place that knows all the others.

A ``Daemon`` serves the node once. Its process, in ``life``, makes another one for a changed configuration, and when it
gets the node back from a successor that failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

from prometheus_client.registry import Collector

from hami_plugin.allocation.capacity import AS_HAMI, EXACTLY, AllocationRules, NodeState
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.recovery import KubeletAccount, Recovery
from hami_plugin.allocation.resizing import Resizer, wish_of
from hami_plugin.allocation.settlement import LockReaper, Settlement, lock_age
from hami_plugin.cluster.client import ApiServer
from hami_plugin.config.changes import ConfigurationSource
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.build import VendorBuilder, build
from hami_plugin.daemon.dra import DraNode, claims_document
from hami_plugin.daemon.front_ends import FrontEnds
from hami_plugin.daemon.reload import Succession, Turn
from hami_plugin.daemon.startup import ServedVendor, report_handover, report_unlimited, tidy_specs
from hami_plugin.daemon.state import StateDirectory
from hami_plugin.daemon.takeover import SERVE_S, NodeClaim, Peer
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.kubelet.endpoint import Endpoint, PluginDirectory, drops_newcomers
from hami_plugin.kubelet.holders import CheckpointFile, PodResourcesClient
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.views import PodView
from hami_plugin.node_status.annotations import Style
from hami_plugin.node_status.condition import DeviceKind, NodeConditions, kinds_of
from hami_plugin.node_status.cost import CostAccount, CostMeter, Holdings
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.faults import FaultLog, faults_document
from hami_plugin.node_status.occupancy import DeviceOccupancy, occupied
from hami_plugin.node_status.priorities import Priorities
from hami_plugin.node_status.registration import LiveNode, Registration
from hami_plugin.node_status.remediation import Remediation
from hami_plugin.node_status.status import events_of, links_of, status_document
from hami_plugin.node_status.usage import Loads, Pods, UsageReader, by_device, usage_document
from hami_plugin.partitions.life import partitions_document
from hami_plugin.process.aio import holds
from hami_plugin.process.log import logger
from hami_plugin.telemetry.metrics import (
    ClaimDriver,
    Claimed,
    Costs,
    Devices,
    DeviceUserMetrics,
    FaultMetrics,
    HamiUsage,
    HardwareLoad,
    HeldBack,
    Metrics,
    PartitionMetrics,
    ReadinessMetrics,
    Remedies,
    Resized,
    Usage,
)

log = logger(__name__)

COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}
STUCK_AFTER_S = 60.0
LOAD_KEPT_S = 60.0
"""How long what a driver said of its devices' load is shown at least: a busy driver is late at times."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonProcess:
    """What differs per process. ``hook_view`` is where this process sees the host's hook directory.

    ``vendors`` opens the vendors' drivers, each time anew. ``source`` is where the configuration may change.
    ``front_ends`` are those of vendors whose settings leave them open.
    """

    configuration: Configuration
    vendors: Callable[[Configuration], tuple[ServedVendor, ...]]
    kubeconfig: Path | None = None
    host: HostPaths = field(default_factory=HostPaths)
    version: str = ""
    log_lines_dropped: Callable[[], int] = lambda: 0
    source: ConfigurationSource | None = None
    front_ends: FrontEnds = field(default_factory=FrontEnds)


class End(Enum):
    """How a daemon ended, where no other process has taken the node over."""

    STOPPED = auto()
    REPLACED = auto()
    """Another daemon of this process serves the node, with another configuration."""


class Daemon:
    """All objects of one daemon, wired. ``run`` raises when a part fails unexpectedly.

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
        self._settings = settings = process.configuration.settings
        self._cluster = cluster
        self._claim = claim
        self._turn: Turn = turn or claim
        self._predecessor = predecessor
        self._front_ends = process.front_ends
        self._vendors = process.vendors(process.front_ends.settled(process.configuration))

        self._boot = _boot_id(process.host.proc)
        self._state = StateDirectory(settings.state_dir, self._boot, claim.lock.renew)
        self._ledger, self._claims = self._state.ledger, self._state.claims
        self._node = LiveNode()
        self._dra = DraNode(
            claims=self._claims,
            cluster=cluster,
            live=self._node,
            generation=lambda: claim.lock.generation,
            boot=self._boot,
        )
        self._pods = PodTable(self._pod_gone, first=self._first_pods)
        self._directory = PluginDirectory(started=self._pods.by_creation)
        self._checkpoint = CheckpointFile(settings.kubelet_dir)
        self._holdings = PodResourcesClient(settings.pod_resources_socket)
        self._events = EventRecorder(cluster, settings.node_name)
        self._settlement = Settlement(cluster, pods=self._pods, ledger=self._ledger, node=self._node)
        self._recovery = Recovery(
            ledger=self._ledger, pods=self._pods, settlement=self._settlement, checkpoint=self._checkpoint
        )

        self.account = KubeletAccount(self._holdings, self._ledger, lending=lambda: self._serving.lending)
        self.fault_log = FaultLog(self._everything_held, self._pods.get, self._events)
        self.loads = Loads(kept=max(LOAD_KEPT_S, 3 * settings.usage_seconds))
        held = Holdings(occupied=self._occupied, version=self._held_version, pod=self._pods.get)
        self.cost = CostMeter(held, settings.cost_labels)

        builder = self._builder(process.host, metrics)
        self._serving = build(self._vendors, builder)
        self._usage = self._usage_reader(process.host)
        self._priorities = self._usage.after = Priorities(
            self._pods.get,
            self._usage.pace,
            settings.state_dir / "held-back",
            on_disk=self._state.call,
            wanted=settings.priority_loop,
        )
        self._resizer = Resizer(builder.node, self._serving.sources, cluster, self._usage.limit)
        self._settlement.questions = self._resizer.questions = self._serving.questions
        self._settlement.recorders = [*(one.names for one in self._serving.partitions), self._resizer.annotations]
        self._reaper = LockReaper(
            cluster, pods=self._pods, node=self._node, ledger=self._ledger, questions=self._settlement.questions
        )
        self._registration = self._node_registration()
        self._conditions = NodeConditions(cluster, self._node, self._kinds, wanted=settings.node_condition)
        self._remediation = Remediation(
            cluster,
            self._node,
            self._events,
            mode=settings.remediation,
            sources=lambda: self._serving.sources,
            held=self._everything_held,
        )

        self._claimed = False
        self._wanted = asyncio.Event()
        self._gave: asyncio.Future[str] | None = None
        self._awaited: AbstractSet[str] = frozenset()
        self._relieved = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def _usage_reader(self, host: HostPaths) -> UsageReader:
        """What containers use of their shares, if it is to be read."""
        reader = UsageReader(
            self._serving.sources if self._settings.usage_seconds else [],
            Pods(held=lambda: (*self._ledger.held.values(), *self._claims.held()), known=self._known_pods),
            host=HostFiles(paths=host),
            interval=self._settings.usage_seconds,
        )
        reader.further = lambda known: by_device(self._occupied(), self.loads, known)
        return reader

    def _node_registration(self) -> Registration:
        """What the node's annotations say of its devices."""
        settings = self._settings
        return Registration(
            self._cluster,
            self._serving.announced,
            node=self._node,
            events=self._events,
            style=Style(legacy=settings.register_format == "legacy", scores=settings.topology_scores),
            now=lambda: datetime.now(tz=UTC).astimezone(),
            labelled=(lambda: self._serving.sources) if settings.node_labels else None,
            taken=lambda: {grant.uuid for held in self._ledger.held.values() for grant in held.grants},
        )

    def _builder(self, host: HostPaths, metrics: Metrics) -> VendorBuilder:
        """What the vendors share: the node's pods, what is held there, and where that is written."""
        settings = self._settings
        node = NodeState(
            rules=AllocationRules(
                node=settings.node_name,
                wait=settings.decision_wait_seconds,
                serve_unannotated=settings.unannotated_pods == "serve",
                counted=COUNTED[settings.overcommit_check],
            ),
            pods=self._pods,
            ledger=self._ledger,
            settlement=self._settlement,
            checkpoint=self._checkpoint,
            events=self._events,
            host=HostFiles(paths=replace(host, node=settings.node_name)),
            observer=metrics,
            outdated=lambda: self._cluster.pods_outdated,
            refresh=self._cluster.refresh_pods,
            current=lambda: self._known_pods() is not None,
            listed=self._listed_pods,
        )
        return VendorBuilder(
            settings=settings,
            node=node,
            boot=self._boot,
            memory=self._state.memory,
            watch=DirectoryWatch(settings.kubelet_dir),
            directory=self._directory,
            metrics=metrics,
            faults=self.fault_log,
            metered=self._metered if settings.cost_metrics else None,
            loaded=self.loads.note if settings.usage_seconds else None,
            dra=self._dra,
        )

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
            await self._state.written()  # otherwise this process ends, and the next one reads what the disk has
            self._closing = asyncio.create_task(self._serving.release(self._settlement.close), name="drivers' end")
        await self._state.close()
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
        if not self._claimed:
            return "the daemon is starting"
        self._gave = asyncio.get_running_loop().create_future()
        self._wanted.set()
        return await self._gave

    async def _run(self, stop: asyncio.Event) -> Peer | End:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work, name=name) for name, work in self._serving.discover()]
            successor: Peer | End = End.STOPPED
            if await self._turn.take(stop, self._can_serve):
                await self._begin()
                tasks += [group.create_task(work, name=name) for name, work in self._work().items()]
                async with self._claim.listening(self._serving.driver_problems):
                    successor = await self._until_replaced(stop)
            if successor is End.STOPPED:
                if self._claimed:
                    log.info("stopping")
                await self._serving.close(self._settlement.close)
                if not isinstance(self._turn, Succession) or self._turn.given:
                    await self._end_predecessor()
            for task in tasks:
                task.cancel()
            await self._serving.cut_no_more()
        return successor

    async def released(self) -> None:
        """What this daemon used of the host is free: its drivers are closed, or were given up."""
        if self._closing:
            await self._closing

    async def end(self) -> None:
        """Nobody needs this daemon's streams any more."""
        await self._end_predecessor()
        await self._serving.end_streams()
        await self.released()

    async def _end_predecessor(self) -> None:
        former, self._predecessor = self._predecessor, None
        if former:
            await former.end()

    async def _begin(self) -> None:
        """The node is this process's: read what its former lives have left."""
        self._directory.generation = self._claim.lock.generation
        if isinstance(self._turn, Succession) and self._predecessor:
            self.fault_log.inherit(self._predecessor.fault_log)
            self.cost.account.inherit(self._predecessor.cost.account)
            self._events.recent.extendleft(reversed(self._predecessor.events.recent))
            self._directory.inherit(*self._predecessor.bequest(), known=lambda: self._pods.changes.value)
            self._awaited = self._predecessor.working
        elif self._succeeds:
            self._directory.succeeding_until = time.monotonic() + 2 * SERVE_S
            self._awaited = (self._predecessor or self).working
        shares, claims = self._state.load()
        log.info("journal read", shares=shares, claims=claims, generation=self._directory.generation)
        await self._recovery.ask()
        report_handover(self._vendors, self._events)
        report_unlimited(source.family for source in self._serving.sources)
        tidy_specs(self._settings.cdi_dirs[-1], self._serving.kinds)
        self._claimed = True

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
                    if why := await self._drained(self._serving.leave):
                        await self._claim.refuse(successor, why)
                    else:
                        return successor
                elif self._wanted.is_set():
                    self._wanted.clear()
                    if why := await self._drained(self._serving.hold):
                        self._answer(why)
                    else:
                        return End.REPLACED
        finally:
            stopped.cancel()

    async def _drained(self, leave: Callable[[], None]) -> str:
        """``leave`` what the kubelet asks from now on to others, and finish the rest. Answers why this cannot be."""
        leave()
        self._resizer.closed = "another daemon takes this node over"
        if not await holds(lambda: not self._serving.running and self._resizer.idle, within=DRAIN_S):
            why = f"a call has been running for {DRAIN_S:g} s"
        else:
            await holds(lambda: self._settlement.idle, within=SETTLE_S)  # the successor records what is left
            try:
                await self._state.written()
            except OSError as error:
                why = f"the journal cannot be written: {error}"
            else:
                return ""
        self._resizer.closed = ""
        self._serving.stay()
        return why

    async def _relieve(self) -> None:
        """Let the predecessor's streams end, once the kubelet has ours, and no call that it passed on would break.

        A driver that worked before, and fails for the moment, is waited for: till then the predecessor's list stands.
        """
        await holds(lambda: self._serving.registered(self._awaited), within=REGISTER_S)
        if self._succeeds:
            await asyncio.sleep(LINGER_S)
        await holds(lambda: not self._serving.running, within=DRAIN_S)
        drops = self._succeeds and self._node.value is not None and drops_newcomers(self._node.value.kubelet)
        if drops:
            await self._serving.be_forgotten()
        await self._end_predecessor()
        self._directory.inherited.clear()
        await self._claim.relieve()
        if drops:
            await asyncio.sleep(LINGER_S)  # until the kubelet has noticed, too
            await self._serving.be_known()
        self._relieved.set()
        await holds(lambda: not self._registration.problem, within=REGISTER_S)
        await asyncio.to_thread(_give_memory_back)

    @property
    def _succeeds(self) -> bool:
        """Whether a predecessor has streams and sockets of its own, beside ours."""
        former = self._predecessor or self._claim.predecessor
        return former is not None and not isinstance(self._turn, Succession)

    @property
    def working(self) -> AbstractSet[str]:
        """The vendors whose devices are known."""
        return {vendor for vendor, problem in self._serving.driver_problems().items() if not problem}

    def _can_serve(self) -> dict[str, str] | None:
        return self._serving.driver_problems() if self._serving.discovered else None

    def bequest(self) -> tuple[PluginDirectory, list[Endpoint]]:
        """What the kubelet has open with this daemon."""
        return self._directory, [one.endpoint for one in self._serving.resources]

    def driver_problems(self) -> Mapping[str, str]:
        """Why each vendor's devices are not known; empty for one whose are."""
        return self._serving.driver_problems()

    @property
    def settled(self) -> bool:
        """Whether the kubelet has what this daemon offers, so that nobody waits for a former one any more."""
        return self._relieved.is_set()

    @property
    def events(self) -> EventRecorder:
        """Where what happens to the node is told."""
        return self._events

    @property
    def unsettled(self) -> str:
        """Why the configuration cannot change just now; empty when it can."""
        if not self._relieved.is_set():
            return "the daemon is starting"
        if why := self._cluster.reachable.value:  # a new daemon would know none of the pods that wait
            return f"the API server is away: {why}"
        return ""

    def by_claims(self) -> list[str]:
        """The vendors whose devices are offered or held by ResourceClaims."""
        return self._serving.claimed

    def isolated(self) -> list[str]:
        """The vendors whose drivers have processes of their own."""
        return [served.vendor.name for served in self._vendors if served.isolated]

    def left_out(self, former: Daemon) -> tuple[set[str], set[str]]:
        """The vendors and the resources of a former daemon that this one does not serve."""
        vendors, resources = former.serves()
        kept = self.serves()
        return vendors - kept[0], resources - kept[1]

    def serves(self) -> tuple[set[str], set[str]]:
        """Vendors and resources."""
        vendors = {one.discovery.vendor for one in self._serving.vendors}
        return vendors, {one.plugin.resource for one in self._serving.resources}

    def readiness(self) -> dict[str, str]:
        """Each component's problem; empty when it is ready."""
        if not self._claimed:
            return self._standing_by()
        answer = {
            "api server": self._cluster.reachable.value,
            "node annotations": self._registration.problem,
            "state": self._state.problem,
            "holdings": self._recovery.problem,
        }
        return answer | dict(self._serving.problems())

    def _standing_by(self) -> dict[str, str]:
        """A rolling update ends the present daemon when this one is ready, and one that cannot hand over waits for
        that.
        """
        if self._claim.replaces_mute and self._serving.discovered:
            return {f"driver {vendor}": problem for vendor, problem in self._serving.driver_problems().items()}
        return {"daemon": self._claim.waiting or "starting"}

    def shown(self) -> tuple[Collector, ...]:
        """The present state as metrics, read at each scrape."""
        devices = Devices(self._occupied, self._confirmed, lambda: self.account.readable)
        condition = ReadinessMetrics(self.readiness, lambda: lock_age(self._node, datetime.now(tz=UTC)))
        hami = (HamiUsage(self._usage),) if self._settings.hami_metrics else ()
        return (
            devices,
            condition,
            FaultMetrics(self.fault_log, self._occupied),
            Usage(self._usage),
            HardwareLoad(
                self._occupied,
                self.loads,
                hami_node=self._settings.node_name if self._settings.hami_metrics else "",
            ),
            DeviceUserMetrics(self._occupied, self.loads, self._pods.get),
            *((HeldBack(lambda: tuple(self._priorities.held_back.values())),) if self._settings.priority_loop else ()),
            Resized(lambda: self._resizer.counts),
            *((Remedies(lambda: self._remediation.counts),) if self._settings.remediation != "off" else ()),
            *((Costs(self._counted_cost),) if self._settings.cost_metrics else ()),
            PartitionMetrics(self._serving.partitions),
            Claimed(self._claim_drivers),
            *hami,
        )

    def _claim_drivers(self) -> Iterator[ClaimDriver]:
        for driver in self._serving.drivers:
            shown = driver.shown()
            if driver.offering or shown["claims"]:
                named = {name: shown[name] for name in ("driver", "registered", "slices", "generation", "devices")}
                yield ClaimDriver(**named, prepared=len(shown["claims"]))

    def claims(self) -> Mapping[str, object]:
        """What is prepared for ResourceClaims, for ``hami-plugin dra``."""
        offering = [driver for driver in self._serving.drivers if driver.offering or driver.shown()["claims"]]
        return claims_document(offering, self._settings.node_name)

    async def forget_claim(self, uid: str) -> Mapping[str, object]:
        """Release a claim that the kubelet has forgotten, whichever driver has it."""
        having = [one for one in self._serving.drivers if self._claims.get(one.driver, uid)]
        if not having:
            return {"forgotten": False, "why": "nothing is prepared for it"}
        reasons = [f"{one.driver}: {why}" for one in having if (why := await one.forget(uid))]
        return {"forgotten": not reasons, "why": "; ".join(reasons)}

    def usage(self) -> Mapping[str, object]:
        """Every device with its containers and what they use, for ``hami-plugin top``."""
        return usage_document(self._occupied(), self._usage, self.loads, self._pods.get, self._settings.node_name)

    async def resize(self, wish: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what a container that runs may use of its devices, for ``hami-plugin resize``."""
        try:
            return await self._resizer.resize(wish_of(wish))
        except HamiError as error:
            return {"resized": False, "why": str(error)}

    def status(self) -> Mapping[str, Any]:
        """All that the status page shows."""
        sources = self._serving.sources
        return status_document(
            self.usage(),
            self.partitions(),
            links=links_of(sources),
            events=events_of(self._events.recent),
            messages={one["uuid"]: _words(one) for one in self.faults()["devices"]},
            nouns={served.vendor.name: served.vendor.noun for served in self._vendors},
        )

    def partitions(self) -> Mapping[str, object]:
        """Every partition with its owner, and what is left of each card, for ``hami-plugin partitions``."""
        return partitions_document(self._serving.partitions, self._settings.node_name, self._serving.modes)

    def _occupied(self) -> Iterable[DeviceOccupancy]:
        return occupied(self._serving.sources, self._everything_held())

    def _everything_held(self) -> tuple[HeldShare, ...]:
        return (*self._ledger.held.values(), *self.account.lent, *self._claims.held())

    def _kinds(self) -> Sequence[DeviceKind]:
        return kinds_of(self._serving.sources, {served.vendor.name: served.vendor.noun for served in self._vendors})

    def _held_version(self) -> object:
        """Differs as soon as what containers have of which devices does."""
        snapshots = tuple((source.vendor, source.snapshot.version) for source in self._serving.sources)
        return (
            self._ledger.version,
            self._claims.changes.version,
            self.account.lent,
            self._pods.changes.version,
            snapshots,
        )

    def _metered(self, vendor: str, joules: Mapping[str, float]) -> None:
        if self._claimed:
            self.cost.metered(vendor, joules)

    def _counted_cost(self) -> CostAccount:
        self.cost.look()
        return self.cost.account

    def faults(self) -> Mapping[str, Any]:
        """Every device with its last fault and when it heals, for ``hami-plugin explain``."""
        now = time.monotonic()
        inventories = {one.discovery.vendor: one.inventory for one in self._serving.vendors}
        return faults_document(
            self._serving.sources,
            self._everything_held(),
            self.fault_log,
            lambda vendor, uuid: inventories[vendor].outlook(uuid, now),
            self._settings.node_name,
        )

    def _confirmed(self, held: HeldShare) -> bool | None:
        return None if self._claims.gave(held) else self.account.confirms(held)

    def _known_pods(self) -> AbstractSet[str] | None:
        """UIDs of the pods that the API server has of this node; None while that cannot be said."""
        if not self._pods.changes.value or self._cluster.pods_outdated or self._cluster.reachable.value:
            return None
        return {pod.uid for pod in self._pods.pods}

    async def _listed_pods(self) -> AbstractSet[tuple[str, str]]:
        """Namespace and name of the pods that the kubelet has devices for."""
        everything = await self._holdings.everything()
        return {(holder.namespace, holder.pod) for holders in everything.values() for holder in holders}

    def stalled(self) -> list[str]:
        """Loops that have stopped turning. A broken device or an absent kubelet is no reason to be restarted."""
        now = time.monotonic()
        loops = [vendor.discovery for vendor in self._serving.vendors]
        late = {loop.vendor: now - loop.beat for loop in loops if self._claimed}
        return [f"driver {name}: no turn for {s:.0f} s" for name, s in late.items() if s > STUCK_AFTER_S]

    def _work(self) -> dict[str, Coroutine[None, None, None]]:
        return {
            "pods": self._cluster.follow_pods(self._pods.feed),
            "node": self._cluster.follow_node(self._node.deliver),
            "registration": self._registration.run(),
            "events": self._events.run(),
            "lock reaper": self._reaper.run(),
            "recovery": self._recovery.run(),
            "usage": self._usage.run(),
            **({"cost": self.cost.run()} if self._settings.cost_metrics else {}),
            "node conditions": self._conditions.run(),
            **({"remediation": self._remediation.run()} if self._settings.remediation != "off" else {}),
            **({"resizes": self._resizer.run()} if self._settings.resize_by_annotation else {}),
            "state": self._state.run(),
            **self._following_slices(),
            **({"front ends": self._front_ends.follow(self._node.view)} if self._front_ends.chosen else {}),
            **dict(self._serving.serve()),
            "relief": self._relieve(),
        }

    def _following_slices(self) -> dict[str, Coroutine[None, None, None]]:
        """The watch of ResourceSlices, which clusters before Kubernetes 1.34 do not have, if we publish any."""
        offering = any(driver.offering for driver in self._serving.drivers)
        return {"slices": self._dra.follow_slices()} if offering else {}

    def _first_pods(self) -> None:
        """The first list of pods has arrived: what they hold counts before any pod is matched."""
        self._recovery.restore()
        self._resizer.recover()

    def _pod_gone(self, pod: PodView) -> None:
        """A pod has ended: what it held is free."""
        self._reaper.gone(pod)
        self._settlement.forget(pod.uid)
        self._ledger.drop([held.key for held in self._ledger.held.of_pod(pod.uid)])
        for driver in self._serving.drivers:
            driver.look()


def _words(device: Mapping[str, Any]) -> str:
    """What is wrong with a device, and when it heals."""
    outlook = f"heals {device['outlook']}" if device["outlook"] else ""
    return "; ".join(filter(None, (device["message"], outlook)))


def _give_memory_back() -> None:
    """To the system: what only the start needed, which on a large node is some MiB. By itself glibc keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps less
    if trim:
        trim(0)


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
