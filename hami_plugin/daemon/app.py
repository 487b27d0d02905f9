"""The composition root: from a configuration to one running daemon. The only place that knows all the others."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from hami_plugin.aio import happened
from hami_plugin.allocation.capacity import AS_HAMI, EXACTLY, AllocationRules, NodeState
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.recovery import KubeletAccount, Recovery
from hami_plugin.allocation.settlement import LockReaper, Settlement, lock_age
from hami_plugin.cluster.client import ApiServer, connect
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.build import VendorBuilder, build
from hami_plugin.daemon.startup import Served, report_handover, report_unlimited, tidy_specs
from hami_plugin.errors import HamiError
from hami_plugin.host.files import StateLock
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.host.threads import WorkThread
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.kubelet.checkpoint import CheckpointFile
from hami_plugin.kubelet.endpoint import PluginDirectory
from hami_plugin.kubelet.podresources import PodResourcesClient
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.node_status.annotations import Style
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.occupancy import occupied
from hami_plugin.node_status.registration import LiveNode, Registration
from hami_plugin.telemetry.connections import raise_descriptor_limit
from hami_plugin.telemetry.http import TelemetryServer
from hami_plugin.telemetry.metrics import Condition, Devices, Metrics

log = logger(__name__)

COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}
STUCK_AFTER_S = 60.0
STATE_CHECK_S = 5.0
FLUSH_S = 2.0
"""How long the end waits for the disk to take the last entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What differs per process. ``hook_view`` is where this process sees the host's hook directory."""

    configuration: Configuration
    vendors: tuple[Served, ...]
    kubeconfig: Path | None = None
    host: HostPaths = field(default_factory=HostPaths)
    version: str = ""
    log_lines_dropped: Callable[[], int] = lambda: 0


class Daemon:
    """All objects of one daemon, wired. ``run`` returns after a signal, and raises when a part fails unexpectedly."""

    def __init__(self, process: Process, cluster: ApiServer, metrics: Metrics) -> None:
        settings = process.configuration.settings
        self._settings = settings
        self._state_lock = StateLock(settings.state_dir)
        self._cluster = cluster
        self._node = LiveNode()
        self._pods = PodTable(self._pod_gone, first=self._first_pods)
        self._journal = JournalWriter(Journal(settings.state_dir / "journal"))
        self._ledger = Ledger(self._journal)
        self._memory = HealthMemory(settings.state_dir / "health.json", _boot_id(process.host.proc))
        self._state_thread, self._unclaimed = WorkThread("state directory"), ""
        self._events = EventRecorder(cluster, settings.node_name)
        self._settlement = Settlement(cluster, pods=self._pods, ledger=self._ledger, node=self._node)
        self.account = KubeletAccount(PodResourcesClient(settings.pod_resources_socket), self._ledger)
        self._checkpoint = CheckpointFile(settings.kubelet_dir)
        self._vendors = process.vendors
        self._serving = build(
            process.vendors,
            VendorBuilder(
                settings=settings,
                node=NodeState(
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
                    host=HostFiles(paths=process.host),
                    observer=metrics,
                    outdated=lambda: cluster.pods_outdated,
                    refresh=cluster.refresh_pods,
                ),
                memory=self._memory,
                watch=DirectoryWatch(settings.kubelet_dir),
                directory=PluginDirectory(started=self._pods.by_creation),
                metrics=metrics,
            ),
        )
        self._settlement.questions = [one.plugin.question for one in self._serving.resources]
        self._reaper = LockReaper(
            cluster, pods=self._pods, node=self._node, ledger=self._ledger, questions=self._settlement.questions
        )
        self._registration = Registration(
            cluster,
            self._serving.sources,
            node=self._node,
            events=self._events,
            style=Style(legacy=settings.register_format == "legacy", scores=settings.topology_scores),
            now=lambda: datetime.now(tz=UTC).astimezone(),
            taken=lambda: {grant.uuid for held in self._ledger.held.values() for grant in held.grants},
        )
        self._recovery = Recovery(
            ledger=self._ledger, pods=self._pods, settlement=self._settlement, checkpoint=self._checkpoint
        )
        self._blocked = "starting"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``."""
        await self._claim_state(stop)
        if stop.is_set():
            return
        log.info("journal read", shares=self._ledger.load())
        await self._recovery.ask()
        report_handover(self._vendors, self._events)
        report_unlimited(source.family for source in self._serving.sources)
        tidy_specs(self._settings.cdi_dirs[-1], self._serving.kinds)
        self._blocked = ""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work, name=name) for name, work in self._work().items()]
            await stop.wait()
            log.info("stopping")
            await self._serving.close(self._settlement.close)
            for task in tasks:
                task.cancel()
        await self._leave_state()

    def readiness(self) -> dict[str, str]:
        """Each component's problem; empty when it is ready."""
        if self._blocked:
            return {"daemon": self._blocked}
        state = self._unclaimed or self._ledger.problem or self._memory.problem
        answer = {
            "api server": self._cluster.reachable.value,
            "node annotations": self._registration.problem,
            "state": state,
            "holdings": self._recovery.problem,
        }
        return answer | dict(self._serving.problems())

    def shown(self) -> tuple[Collector, ...]:
        """The present state as metrics, read at each scrape."""
        devices = Devices(
            lambda: occupied(self._serving.sources, self._ledger.held.values()),
            self.account.confirms,
            lambda: self.account.readable,
        )
        return devices, Condition(self.readiness, lambda: lock_age(self._node, datetime.now(tz=UTC)))

    def stalled(self) -> list[str]:
        """Loops that have stopped turning. A broken device or an absent kubelet is no reason to be restarted."""
        now = time.monotonic()
        loops = [vendor.discovery for vendor in self._serving.vendors]
        late = {loop.vendor: now - loop.beat for loop in loops if not self._blocked}
        return [f"driver {name}: no turn for {s:.0f} s" for name, s in late.items() if s > STUCK_AFTER_S]

    def _work(self) -> dict[str, Coroutine[None, None, None]]:
        return {
            "pods": self._cluster.follow_pods(self._pods.feed),
            "node": self._cluster.follow_node(self._node.deliver),
            "registration": self._registration.run(),
            "events": self._events.run(),
            "lock reaper": self._reaper.run(),
            "recovery": self._recovery.run(),
            "state": self._keep_state(),
            **dict(self._serving.work()),
        }

    async def _claim_state(self, stop: asyncio.Event) -> None:
        """One daemon per state directory. A second one waits, says so, and takes over when the first is gone."""
        directory = self._settings.state_dir
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not self._state_lock.acquire() and not stop.is_set():
                why = f"another daemon (process {self._state_lock.holder() or 'unknown'}) serves this node"
                if self._blocked != why:
                    log.warning("waiting", why=why, state=str(directory))
                self._blocked = why
                await happened(stop, within=1.0)
        except OSError as error:
            raise HamiError(
                f"the state directory {directory} cannot be used: {error}", hint="set stateDir to a writable directory"
            ) from error

    async def _keep_state(self) -> None:
        """Keep the daemon's own files where its next start reads them, whoever takes them away."""
        while True:
            await asyncio.sleep(STATE_CHECK_S)
            before, renewals = self._ledger.problem, self._journal.renewals
            self._ledger.check()
            self._memory.check()
            try:
                mine = await self._state_thread.call(self._state_lock.renew, STATE_CHECK_S)
            except OSError as error:
                unclaimed = f"the state directory {self._settings.state_dir} cannot be used: {error}"
            else:
                unclaimed = "" if mine else "the state directory was replaced, and another daemon has claimed it"
            if unclaimed != self._unclaimed or before != self._ledger.problem:
                log.warning("state", problem=unclaimed or self._ledger.problem or "none any more")
            self._unclaimed = unclaimed
            if self._journal.renewals != renewals:
                log.warning("journal was gone or changed, and is written anew", shares=len(self._ledger.held))

    async def _leave_state(self) -> None:
        """Give the disk a moment to take the last entries, and free the directory."""
        with suppress(OSError):
            self._state_thread.start(lambda: self._journal.close(FLUSH_S))
            await self._state_thread.call(lambda: self._memory.close(FLUSH_S), FLUSH_S, last=True)
        self._state_lock.release()

    def _first_pods(self) -> None:
        """The first list of pods has arrived: what they hold counts before any pod is matched."""
        self._recovery.restore()

    def _pod_gone(self, pod: PodView) -> None:
        """A pod has ended: what it held is free."""
        self._reaper.gone(pod)
        self._settlement.forget(pod.uid)
        self._ledger.drop([held.key for held in self._ledger.of_pod(pod.uid)])


async def serve(process: Process) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    _spare_the_collector()
    raise_descriptor_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = Metrics(registry, version=process.version, log_lines_dropped=process.log_lines_dropped)
    settings = process.configuration.settings
    async with connect(settings.node_name, kubeconfig=process.kubeconfig, observer=metrics) as cluster:
        # Each vendor lists its families, which may take a while; signals are handled meanwhile.
        daemon = await asyncio.to_thread(Daemon, process, cluster, metrics)
        for collector in daemon.shown():
            registry.register(collector)
        http = TelemetryServer(
            host=settings.http_host,
            port=settings.http_port,
            registry=registry,
            alive=daemon.stalled,
            ready=daemon.readiness,
            configuration=process.configuration.effective,
            refresh=daemon.account.refresh,
            dropped=metrics.connection_dropped,
        )
        await http.start()
        try:
            await daemon.run(stop)
        finally:
            await http.stop()


def _spare_the_collector() -> None:
    """What was imported stays for good. A full collection that goes through it all holds up an Allocate by 40 ms."""
    gc.collect()
    gc.freeze()


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
