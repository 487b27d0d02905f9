"""All that serves a node, wired: what is held there, what serves each vendor, and what is reported of it.

The composition root of a daemon: the only place that knows all the others. What it writes down for its next life, which
is what was handed out, what claims have, and the devices' health, stands in files of the state directory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.registry import Collector

from hami_plugin.allocation.capacity import AS_HAMI, EXACTLY, AllocationRules, NodeState
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.recovery import KubeletAccount, Recovery
from hami_plugin.allocation.resizing import Resizer, parse_resize_request
from hami_plugin.allocation.settlement import LockReaper, Settlement, lock_age
from hami_plugin.cluster.client import ApiServer
from hami_plugin.config.changes import ConfigurationSource
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.build import VendorBuilder, build
from hami_plugin.daemon.dra import DraNode, claims_document
from hami_plugin.daemon.front_ends import FrontEnds
from hami_plugin.daemon.serving import partitions_document
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.dra.prepared import PreparedClaims
from hami_plugin.errors import HamiError
from hami_plugin.host.files import StateLock, remove_unfinished
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.inventory import HealthMemory
from hami_plugin.kubelet.endpoint import PluginDirectory
from hami_plugin.kubelet.holders import CheckpointFile, PodResourcesClient
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.views import PodView
from hami_plugin.node_status.cost import CostAccount, CostMeter, Holdings
from hami_plugin.node_status.events import EventRecorder, events_of
from hami_plugin.node_status.faults import FaultLog, faults_document
from hami_plugin.node_status.occupancy import DeviceOccupancy, device_occupancy
from hami_plugin.node_status.priorities import Priorities
from hami_plugin.node_status.registration import LiveNode, Registration, Style
from hami_plugin.node_status.remediation import DeviceKind, NodeConditions, Remediation, kinds_of
from hami_plugin.node_status.status import links_of, status_document
from hami_plugin.node_status.usage import Loads, Pods, UsageReader, by_device, usage_document
from hami_plugin.process.concurrency import Watched, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.telemetry.metrics import (
    ClaimDriver,
    ClaimMetrics,
    CostMetrics,
    DeviceLoadMetrics,
    DeviceMetrics,
    DeviceUserMetrics,
    FaultMetrics,
    HamiUsageMetrics,
    Metrics,
    PartitionMetrics,
    PriorityMetrics,
    ReadinessMetrics,
    RemediationMetrics,
    ResizeMetrics,
    UsageMetrics,
)

log = logger(__name__)

CHECK_S = 5.0
"""How often it is looked whether the files are as they were left."""
CALL_S = 5.0
"""How long the disk may take over one call."""
FLUSH_S = 2.0
"""How long the end waits for the disk to take the last entries."""

T = TypeVar("T")


class StateDirectory:
    """The files of one daemon. ``renew`` answers whether the directory is still claimed by this process.

    They are only read until ``load``, which is called once the node is this process's.
    """

    def __init__(self, folder: Path, boot: str, renew: Callable[[], bool], *, every: float = CHECK_S) -> None:
        self._folder = folder
        self._renew = renew
        self._every = every
        self._thread = WorkThread("state directory")
        self._unclaimed = ""
        self.journal = JournalWriter(Journal(folder / "journal"))
        self.ledger = Ledger(self.journal)
        self._claims_journal = JournalWriter(Journal(folder / "claims"))
        self.claims = PreparedClaims(self._claims_journal)
        self.memory = HealthMemory(folder / "health.json", boot, reading_only=True)

    @property
    def problem(self) -> str:
        """Why something cannot be written; empty when all can."""
        return self._unclaimed or self.ledger.problem or self.claims.problem or self.memory.problem

    def load(self) -> tuple[int, int]:
        """Read what former lives have left: how many shares, and how many claims."""
        remove_unfinished(self._folder)
        self.memory.own()
        return self.ledger.load(), self.claims.load()

    async def call(self, work: Callable[[], T]) -> T:
        """Do some work with the directory, on its thread."""
        return await self._thread.call(work, CALL_S)

    async def written(self) -> None:
        """Wait until the disk has what was handed out. OSError when it cannot be written."""
        await self.ledger.written()
        await self.claims.written()

    async def run(self) -> None:
        """Keep the files where the next start reads them, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            before, renewals = self.ledger.problem, self.journal.renewals
            self.ledger.check()
            self.claims.check()
            self.memory.check()
            unclaimed = await self._why_unclaimed()
            if unclaimed != self._unclaimed or before != self.ledger.problem:
                log.warning("state", problem=unclaimed or self.ledger.problem or "none any more")
            self._unclaimed = unclaimed
            if self.journal.renewals != renewals:
                log.warning("journal was gone or changed, and is written anew", shares=len(self.ledger.held))

    async def _why_unclaimed(self) -> str:
        try:
            mine = await self.call(self._renew)
        except OSError as error:
            return f"the state directory {self._folder} cannot be used: {error}"
        return "" if mine else "the state directory was replaced, and another daemon has claimed it"

    async def close(self) -> None:
        """Give the disk a moment to take the last entries."""
        with suppress(OSError):
            self._thread.start(lambda: self.journal.close(FLUSH_S))
            self._thread.start(lambda: self._claims_journal.close(FLUSH_S))
            await self._thread.call(lambda: self.memory.close(FLUSH_S), FLUSH_S, last=True)


COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}
STUCK_AFTER_S = 60.0
LOAD_KEPT_S = 60.0
"""How long what a driver said of its devices' load is shown at least: a busy driver is late at times."""


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


class ServedNode:
    """The objects of one daemon. It holds the node, and may write, once it has ``begun``."""

    def __init__(self, process: DaemonProcess, cluster: ApiServer, metrics: Metrics, lock: StateLock) -> None:
        self.settings = settings = process.configuration.settings
        self.cluster = cluster
        self.begun = False
        self._front_ends = process.front_ends
        self.vendors = process.vendors(process.front_ends.settled(process.configuration))

        self._boot = _boot_id(process.host.proc)
        self.state = StateDirectory(settings.state_dir, self._boot, lock.renew)
        self._ledger, self._claims = self.state.ledger, self.state.claims
        self.live = LiveNode()
        self._dra = DraNode(
            claims=self._claims, cluster=cluster, live=self.live, generation=lambda: lock.generation, boot=self._boot
        )
        self.pods = PodTable(self._pod_gone, first=self._first_pods)
        self.directory = PluginDirectory(started=self.pods.by_creation)
        self._checkpoint = CheckpointFile(settings.kubelet_dir)
        self._holdings = PodResourcesClient(settings.pod_resources_socket)
        self.events = EventRecorder(cluster, settings.node_name)
        self.settlement = Settlement(cluster, pods=self.pods, ledger=self._ledger, node=self.live)
        self.recovery = Recovery(
            ledger=self._ledger, pods=self.pods, settlement=self.settlement, checkpoint=self._checkpoint
        )

        self.account = KubeletAccount(self._holdings, self._ledger, lending=lambda: self.serving.lending)
        self.fault_log = FaultLog(self._everything_held, self.pods.get, self.events)
        self.loads = Loads(kept=max(LOAD_KEPT_S, 3 * settings.usage_seconds))
        held = Holdings(
            occupied=self._occupied,
            version=self._held_version,
            changes=self._held_changes,
            pod=self.pods.get,
        )
        self.cost = CostMeter(held, settings.cost_labels)

        builder = self._builder(process.host, metrics)
        self.serving = build(self.vendors, builder)
        self._usage = self._usage_reader(process.host)
        self._priorities = self._usage.after = self._held_back()
        self.resizer = Resizer(builder.node, self.serving.sources, cluster, self._usage.limit)
        self.settlement.questions = self.resizer.questions = self.serving.questions
        self.settlement.recorders = [*(one.names for one in self.serving.partitions), self.resizer.annotations]
        self._reaper = LockReaper(
            cluster, pods=self.pods, node=self.live, ledger=self._ledger, questions=self.settlement.questions
        )
        self.registration = self._node_registration()
        self._conditions = NodeConditions(cluster, self.live, self._kinds, wanted=settings.node_condition)
        self._remediation = self._node_remediation()

    def inherit(self, former: ServedNode) -> None:
        """Take over what a former daemon of this process has open with the kubelet, and what it told."""
        self.fault_log.inherit(former.fault_log)
        self.cost.account.inherit(former.cost.account)
        self.events.recent.extendleft(reversed(former.events.recent))
        endpoints = [one.endpoint for one in former.serving.resources]
        self.directory.inherit(former.directory, endpoints, known=lambda: self.pods.changes.value)

    def problems(self) -> dict[str, str]:
        """Each component's; empty when it works."""
        found = {
            "api server": self.cluster.reachable.value,
            "node annotations": self.registration.problem,
            "state": self.state.problem,
            "holdings": self.recovery.problem,
        }
        return found | dict(self.serving.problems())

    def _held_back(self) -> Priorities:
        """Which containers wait, so that others of the same device go first."""
        return Priorities(
            self.pods.get,
            self._usage.pace,
            self.settings.state_dir / "held-back",
            on_disk=self.state.call,
            wanted=self.settings.priority_loop,
        )

    def _node_remediation(self) -> Remediation:
        """What is done about devices that need a reset."""
        return Remediation(
            self.cluster,
            self.live,
            self.events,
            mode=self.settings.remediation,
            sources=lambda: self.serving.sources,
            held=self._everything_held,
        )

    def _usage_reader(self, host: HostPaths) -> UsageReader:
        """What containers use of their shares, if it is to be read."""
        reader = UsageReader(
            self.serving.sources if self.settings.usage_seconds else [],
            Pods(held=lambda: (*self._ledger.held.values(), *self._claims.held()), known=self._known_pods),
            host=HostFiles(paths=host),
            interval=self.settings.usage_seconds,
        )
        reader.further = lambda known: by_device(self._occupied(), self.loads, known)
        return reader

    def _node_registration(self) -> Registration:
        """What the node's annotations say of its devices."""
        settings = self.settings
        return Registration(
            self.cluster,
            self.serving.announced,
            node=self.live,
            events=self.events,
            style=Style(legacy=settings.register_format == "legacy", scores=settings.topology_scores),
            now=lambda: datetime.now(tz=UTC).astimezone(),
            labelled=(lambda: self.serving.sources) if settings.node_labels else None,
            taken=lambda: {grant.uuid for held in self._ledger.held.values() for grant in held.grants},
        )

    def _builder(self, host: HostPaths, metrics: Metrics) -> VendorBuilder:
        """What the vendors share: the node's pods, what is held there, and where that is written."""
        settings = self.settings
        node = NodeState(
            rules=AllocationRules(
                node=settings.node_name,
                wait=settings.decision_wait_seconds,
                serve_unannotated=settings.unannotated_pods == "serve",
                counted=COUNTED[settings.overcommit_check],
            ),
            pods=self.pods,
            ledger=self._ledger,
            settlement=self.settlement,
            checkpoint=self._checkpoint,
            events=self.events,
            host=HostFiles(paths=replace(host, node=settings.node_name)),
            observer=metrics,
            outdated=lambda: self.cluster.pods_outdated,
            refresh=self.cluster.refresh_pods,
            current=lambda: self._known_pods() is not None,
            listed=self._listed_pods,
        )
        return VendorBuilder(
            settings=settings,
            node=node,
            boot=self._boot,
            memory=self.state.memory,
            watch=DirectoryWatch(settings.kubelet_dir),
            directory=self.directory,
            metrics=metrics,
            faults=self.fault_log,
            metered=self._metered if settings.cost_metrics else None,
            loaded=self.loads.note if settings.usage_seconds else None,
            dra=self._dra,
        )

    def shown(self, readiness: Callable[[], Mapping[str, str]]) -> tuple[Collector, ...]:
        """The present state as metrics, and whether the daemon is ready."""
        devices = DeviceMetrics(self._occupied, self._confirmed, lambda: self.account.readable)
        condition = ReadinessMetrics(readiness, lambda: lock_age(self.live, datetime.now(tz=UTC)))
        hami = (HamiUsageMetrics(self._usage),) if self.settings.hami_metrics else ()
        return (
            devices,
            condition,
            FaultMetrics(self.fault_log, self._occupied),
            UsageMetrics(self._usage),
            DeviceLoadMetrics(
                self._occupied,
                self.loads,
                hami_node=self.settings.node_name if self.settings.hami_metrics else "",
            ),
            DeviceUserMetrics(self._occupied, self.loads, self.pods.get),
            *(
                (PriorityMetrics(lambda: tuple(self._priorities.held_back.values())),)
                if self.settings.priority_loop
                else ()
            ),
            ResizeMetrics(lambda: self.resizer.counts),
            *((RemediationMetrics(lambda: self._remediation.counts),) if self.settings.remediation != "off" else ()),
            *((CostMetrics(self._counted_cost),) if self.settings.cost_metrics else ()),
            PartitionMetrics(self.serving.partitions),
            ClaimMetrics(self._claim_drivers),
            *hami,
        )

    def _claim_drivers(self) -> Iterator[ClaimDriver]:
        for driver in self.serving.drivers:
            shown = driver.shown()
            if driver.offering or shown["claims"]:
                named = {name: shown[name] for name in ("driver", "registered", "slices", "generation", "devices")}
                yield ClaimDriver(**named, prepared=len(shown["claims"]))

    @property
    def documents(self) -> Mapping[str, Callable[[], Mapping[str, object]]]:
        """What commands on this host read, by name."""
        return {"usage": self.usage, "partitions": self.partitions, "faults": self.faults, "claims": self.claims}

    def claims(self) -> Mapping[str, object]:
        """What is prepared for ResourceClaims, for ``hami-plugin dra``."""
        offering = [driver for driver in self.serving.drivers if driver.offering or driver.shown()["claims"]]
        return claims_document(offering, self.settings.node_name)

    async def forget_claim(self, uid: str) -> Mapping[str, object]:
        """Release a claim that the kubelet has forgotten, whichever driver has it."""
        having = [one for one in self.serving.drivers if self._claims.get(one.driver, uid)]
        if not having:
            return {"forgotten": False, "why": "nothing is prepared for it"}
        reasons = [f"{one.driver}: {why}" for one in having if (why := await one.forget(uid))]
        return {"forgotten": not reasons, "why": "; ".join(reasons)}

    def usage(self) -> Mapping[str, object]:
        """Every device with its containers and what they use, for ``hami-plugin top``."""
        return usage_document(self._occupied(), self._usage, self.loads, self.pods.get, self.settings.node_name)

    async def resize(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what a container that runs may use of its devices, for ``hami-plugin resize``."""
        try:
            return await self.resizer.resize(parse_resize_request(request))
        except HamiError as error:
            return {"resized": False, "why": str(error)}

    def status(self) -> Mapping[str, Any]:
        """All that the status page shows."""
        sources = self.serving.sources
        return status_document(
            self.usage(),
            self.partitions(),
            links=links_of(sources),
            events=events_of(self.events.recent),
            messages={one["uuid"]: _words(one) for one in self.faults()["devices"]},
            nouns={served.vendor.name: served.vendor.noun for served in self.vendors},
        )

    def partitions(self) -> Mapping[str, object]:
        """Every partition with its owner, and what is left of each card, for ``hami-plugin partitions``."""
        return partitions_document(self.serving.partitions, self.settings.node_name, self.serving.modes)

    def _occupied(self) -> Iterable[DeviceOccupancy]:
        return device_occupancy(self.serving.sources, self._everything_held())

    def _everything_held(self) -> tuple[HeldShare, ...]:
        return (*self._ledger.held.values(), *self.account.lent, *self._claims.held())

    def _kinds(self) -> Sequence[DeviceKind]:
        return kinds_of(self.serving.sources, {served.vendor.name: served.vendor.noun for served in self.vendors})

    def _held_version(self) -> object:
        """Differs as soon as what containers have of which devices does."""
        snapshots = tuple((source.vendor, source.snapshot.version) for source in self.serving.sources)
        return (
            self._ledger.changes.version,
            self._claims.changes.version,
            self.account.lent,
            self.pods.changes.version,
            snapshots,
        )

    def _held_changes(self) -> Iterator[Watched[Any]]:
        """What wakes for another ``_held_version``; of what the kubelet has lent nothing does."""
        yield from (self._ledger.changes, self._claims.changes, self.pods.changes)
        yield from (source.snapshot for source in self.serving.sources)

    def _metered(self, vendor: str, joules: Mapping[str, float]) -> None:
        if self.begun:
            self.cost.metered(vendor, joules)

    def _counted_cost(self) -> CostAccount:
        self.cost.look()
        return self.cost.account

    def faults(self) -> Mapping[str, Any]:
        """Every device with its last fault and when it heals, for ``hami-plugin explain``."""
        now = time.monotonic()
        inventories = {one.discovery.vendor: one.inventory for one in self.serving.vendors}
        return faults_document(
            self.serving.sources,
            self._everything_held(),
            self.fault_log,
            lambda vendor, uuid: inventories[vendor].outlook(uuid, now),
            self.settings.node_name,
        )

    def _confirmed(self, held: HeldShare) -> bool | None:
        return None if self._claims.gave(held) else self.account.confirms(held)

    def _known_pods(self) -> AbstractSet[str] | None:
        """UIDs of the pods that the API server has of this node; None while that cannot be said."""
        if not self.pods.changes.value or self.cluster.pods_outdated or self.cluster.reachable.value:
            return None
        return {pod.uid for pod in self.pods.pods}

    async def _listed_pods(self) -> AbstractSet[tuple[str, str]]:
        """Namespace and name of the pods that the kubelet has devices for."""
        everything = await self._holdings.everything()
        return {(holder.namespace, holder.pod) for holders in everything.values() for holder in holders}

    def stalled(self) -> list[str]:
        """Loops that have stopped turning. A broken device or an absent kubelet is no reason to be restarted."""
        now = time.monotonic()
        loops = [vendor.discovery for vendor in self.serving.vendors]
        late = {loop.vendor: now - loop.beat for loop in loops if self.begun}
        return [f"driver {name}: no turn for {s:.0f} s" for name, s in late.items() if s > STUCK_AFTER_S]

    def work(self) -> dict[str, Coroutine[None, None, None]]:
        return {
            "pods": self.cluster.follow_pods(self.pods.feed),
            "node": self.cluster.follow_node(self.live.deliver),
            "registration": self.registration.run(),
            "events": self.events.run(),
            "lock reaper": self._reaper.run(),
            "recovery": self.recovery.run(),
            "usage": self._usage.run(),
            **({"cost": self.cost.run()} if self.settings.cost_metrics else {}),
            "node conditions": self._conditions.run(),
            **({"remediation": self._remediation.run()} if self.settings.remediation != "off" else {}),
            **({"resizes": self.resizer.run()} if self.settings.resize_by_annotation else {}),
            "state": self.state.run(),
            **self._following_slices(),
            **({"front ends": self._front_ends.follow(self.live)} if self._front_ends.chosen else {}),
            **dict(self.serving.serve()),
        }

    def _following_slices(self) -> dict[str, Coroutine[None, None, None]]:
        """The watch of ResourceSlices, which clusters before Kubernetes 1.34 do not have, if we publish any."""
        offering = any(driver.offering for driver in self.serving.drivers)
        return {"slices": self._dra.follow_slices()} if offering else {}

    def _first_pods(self) -> None:
        """The first list of pods has arrived: what they hold counts before any pod is matched."""
        self.recovery.restore()
        self.resizer.recover()

    def _pod_gone(self, pod: PodView) -> None:
        """A pod has ended: what it held is free."""
        self._reaper.gone(pod)
        self.settlement.forget(pod.uid)
        self._ledger.drop([held.key for held in self._ledger.held.of_pod(pod.uid)])
        for driver in self.serving.drivers:
            driver.look()


def _words(device: Mapping[str, Any]) -> str:
    """What is wrong with a device, and when it heals."""
    outlook = f"heals {device['outlook']}" if device["outlook"] else ""
    return "; ".join(filter(None, (device["message"], outlook)))


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
