"""The composition root: from a configuration to one running daemon. The only place that knows all the others."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from cdi.errors import CdiError
from hami_plugin.aio import Watched
from hami_plugin.cluster.client import ApiServer, connect
from hami_plugin.config.load import Configuration
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.files import Journal, StateLock
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.kubelet.podresources import PodResourcesClient
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.log import logger
from hami_plugin.model.device import Snapshot
from hami_plugin.model.views import PodView
from hami_plugin.node.allocation import AllocationRules, Allocator
from hami_plugin.node.discovery import Pace, Watch
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.holders import HolderCheck
from hami_plugin.node.inventory import Inventory
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.live import LiveNode
from hami_plugin.node.lock import LockReaper
from hami_plugin.node.memory import HealthMemory
from hami_plugin.node.parts import FamilyPart, whole
from hami_plugin.node.plugin import ResourcePlugin
from hami_plugin.node.pods import PodTable
from hami_plugin.node.recovery import Recovery
from hami_plugin.node.registration import Registration, Source, Style
from hami_plugin.node.settlement import Settlement
from hami_plugin.node.spec_files import SpecFiles, tidy
from hami_plugin.node.specs import SpecPublisher
from hami_plugin.policy.health import Patience
from hami_plugin.startup import Served
from hami_plugin.telemetry.http import TelemetryServer
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor import Family, Units

log = logger(__name__)

STUCK_AFTER_S = 60.0


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
        self._pods = PodTable(self._pod_gone)
        self._ledger = Ledger(Journal(settings.state_dir / "journal"))
        self._events = EventRecorder(cluster, settings.node_name)
        self._settlement = Settlement(cluster, pods=self._pods, ledger=self._ledger, node=self._node)
        self._resources = PodResourcesClient(settings.pod_resources_socket)
        self._memory = HealthMemory(settings.state_dir / "health.json", _boot_id(process.host.proc))
        self._host = HostFiles(paths=process.host)
        self._directory = DirectoryWatch(settings.kubelet_dir)
        self._metrics = metrics
        self._watches: list[Watch] = []
        self._parts: list[FamilyPart] = []
        self._specs: list[SpecPublisher] = []
        self._plugins: list[tuple[ResourcePlugin, Endpoint, Watched[Snapshot]]] = []
        sources: list[Source] = []
        for served in process.vendors:
            watch = self._watch(served)
            self._watches.append(watch)
            shown: list[Watched[Snapshot]] = []
            families = served.vendor.families(served.settings)
            for family in families:
                found = self._own(family, watch) if len(families) > 1 else watch.snapshot
                snapshot = self._described(family, found, partial(self._observe, watch, shown))
                shown.append(snapshot)
                sources.append(Source(family=family, snapshot=snapshot))
                self._plugins.append((*self._plugin(family, snapshot), snapshot))
                if family.units:
                    self._plugins.append((*self._plugin(family, snapshot, family.units), snapshot))
            log.info("devices are handed over", vendor=served.vendor.name, **served.handover)
        self._families = [source.family for source in sources]
        self._settlement.questions = [plugin.question for plugin, _endpoint, _snapshot in self._plugins]
        self._reaper = LockReaper(
            cluster, pods=self._pods, node=self._node, ledger=self._ledger, questions=self._settlement.questions
        )
        self._registration = Registration(
            cluster,
            sources,
            node=self._node,
            events=self._events,
            style=Style(legacy=settings.register_format == "legacy", scores=settings.topology_scores),
            now=lambda: datetime.now(tz=UTC).astimezone(),
            taken=lambda: {grant.uuid for held in self._ledger.held.values() for grant in held.grants},
        )
        self._recovery = Recovery(
            ledger=self._ledger, pods=self._pods, settlement=self._settlement, resources=self._resources
        )
        self._blocked = "starting"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``."""
        await self._claim_state(stop)
        if stop.is_set():
            return
        log.info("journal read", shares=self._ledger.load())
        self._look_at_host()
        self._tidy_specs()
        self._blocked = ""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work, name=name) for name, work in self._work().items()]
            await stop.wait()
            log.info("stopping")
            await self._close()
            for task in tasks:
                task.cancel()
        self._state_lock.release()

    def readiness(self) -> dict[str, str]:
        """Each component's problem; empty when it is ready."""
        if self._blocked:
            return {"daemon": self._blocked}
        answer = {"api server": self._cluster.reachable.value, "node annotations": self._registration.problem}
        for watch in self._watches:
            snapshot = watch.snapshot.value
            words = f"{snapshot.reason}: {snapshot.message}" if snapshot.message else snapshot.reason
            answer[f"driver {watch.vendor}"] = "" if snapshot.ready else words
        for specs in self._specs:
            if not _without_devices(specs.snapshot.value):
                answer[f"cdi {specs.kind}"] = specs.problem
        for plugin, endpoint, shown in self._plugins:
            if _without_devices(shown.value):
                continue
            state = endpoint.state.value
            waiting = state.problem or "the kubelet has not taken the first list yet"
            answer[f"kubelet {plugin.resource}"] = "" if state.ready else waiting
        return answer

    def stalled(self) -> list[str]:
        """Loops that have stopped turning. A broken device or an absent kubelet is no reason to be restarted."""
        now = time.monotonic()
        late = {w.vendor: now - w.beat for w in self._watches if not self._blocked}
        return [f"driver {name}: no turn for {s:.0f} s" for name, s in late.items() if s > STUCK_AFTER_S]

    def _look_at_host(self) -> None:
        """Say what containers will miss. Nothing is refused for it: the runtime tries again until it is there."""
        for family in self._families:
            problem = family.host_problem(self._host)
            if problem:
                log.warning("host not prepared", resource=family.resources.count, problem=problem)
                self._events.node("HostNotPrepared", problem)

    def _tidy_specs(self) -> None:
        """A container that restarts asks for its device again, so specs are removed only where others took over."""
        if not self._specs:
            return
        directory = self._settings.cdi_dirs[-1]
        try:
            removed = tidy(directory, [specs.kind for specs in self._specs]).removed
        except CdiError as error:
            log.warning("cdi directory not tidied", directory=str(directory), why=str(error))
        else:
            if removed:
                log.info("cdi specs removed", directory=str(directory), files=removed)

    def _work(self) -> dict[str, Coroutine[None, None, None]]:
        work = {
            "pods": self._cluster.follow_pods(self._pods.feed),
            "node": self._cluster.follow_node(self._node.deliver),
            "registration": self._registration.run(),
            "events": self._events.run(),
            "lock reaper": self._reaper.run(),
            "recovery": self._recovery.run(),
        }
        for watch in self._watches:
            work[f"driver {watch.vendor}"] = watch.run()
        for own in self._parts:
            work[f"devices of {own.word}"] = own.run()
        for specs in self._specs:
            work[f"cdi {specs.kind}"] = specs.run()
        for plugin, endpoint, snapshot in self._plugins:
            work[f"offers {plugin.resource}"] = plugin.follow()
            work[f"kubelet {plugin.resource}"] = _once_there(snapshot, endpoint.run)
        return work

    async def _claim_state(self, stop: asyncio.Event) -> None:
        """One daemon per state directory. A second one waits, says so, and takes over when the first is gone."""
        directory = self._settings.state_dir
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not self._state_lock.acquire() and not stop.is_set():
                words = f"another daemon (process {self._state_lock.holder() or 'unknown'}) serves this node"
                if self._blocked != words:
                    log.warning("waiting", why=words, state=str(directory))
                self._blocked = words
                await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=1.0)
        except OSError as error:
            raise HamiError(
                f"the state directory {directory} cannot be used: {error}", hint="set stateDir to a writable directory"
            ) from error

    def _watch(self, served: Served) -> Watch:
        settings, name = self._settings, served.vendor.name
        health = settings.health
        patience = Patience(
            suspect_looks=health.suspect_looks,
            clean_looks=health.clean_looks,
            hold=health.hold_seconds,
            hold_cap=health.hold_cap_seconds,
        )
        inventory = Inventory(patience, forget=health.forget_seconds, remembered=self._memory.recall(name))
        return Watch(
            name,
            served.driver,
            inventory,
            pace=Pace(rescan=settings.rescan_seconds, probe=health.probe_seconds),
            observer=self._metrics,
            events=self._events,
            remember=lambda: self._memory.note(name, inventory.conditions),
        )

    def _own(self, family: Family, watch: Watch) -> Watched[Snapshot]:
        """A family's own devices among those of a driver that serves several."""
        own = FamilyPart(family.word, watch.snapshot)
        self._parts.append(own)
        return own.snapshot

    def _observe(self, watch: Watch, shown: Sequence[Watched[Snapshot]], _changed: Snapshot) -> None:
        """Metrics tell of a vendor's devices as its families show them."""
        self._metrics.snapshot(watch.vendor, whole(watch.snapshot.value, (one.value for one in shown)))

    def _described(
        self, family: Family, found: Watched[Snapshot], observe: Callable[[Snapshot], None]
    ) -> Watched[Snapshot]:
        """A family's devices as the others may see them: once their CDI specs are there, where runtimes need those."""
        kind = family.delivery.kind
        if not family.delivery.cdi:
            return found
        if any(specs.kind == kind for specs in self._specs):
            raise ConfigError([f"two families would both be CDI kind {kind}; set cdi.class of one of them"])
        specs = SpecPublisher(
            kind,
            found,
            SpecFiles(family, self._settings.cdi_dirs, self._host),
            events=self._events,
            observe=observe,
        )
        self._specs.append(specs)
        return specs.snapshot

    def _plugin(
        self, family: Family, snapshot: Watched[Snapshot], units: Units | None = None
    ) -> tuple[ResourcePlugin, Endpoint]:
        settings = self._settings
        allocator = Allocator(
            family,
            snapshot=snapshot,
            pods=self._pods,
            ledger=self._ledger,
            settlement=self._settlement,
            events=self._events,
            host=self._host,
            rules=AllocationRules(
                node=settings.node_name,
                wait=settings.decision_wait_seconds,
                serve_unannotated=settings.unannotated_pods == "serve",
            ),
            observer=self._metrics,
            units=units,
        )
        check = HolderCheck(
            allocator.question,
            resources=self._resources,
            pods=self._pods,
            ledger=self._ledger,
            events=self._events,
            observer=self._metrics,
            fail=self._settlement.fail,
        )
        plugin = ResourcePlugin(allocator, check if settings.identity_check == "required" else None, snapshot)
        endpoint = Endpoint(
            plugin,
            settings.kubelet_dir,
            self._metrics,
            watch=self._directory,
            started=self._pods.by_creation,
            displaced=lambda words: self._events.node("Displaced", words),
        )
        return plugin, endpoint

    def _pod_gone(self, pod: PodView) -> None:
        """A pod has ended: what it held is free."""
        self._reaper.gone(pod)
        self._settlement.forget(pod.uid)
        self._ledger.drop([held.key for held in self._ledger.of_pod(pod.uid)])

    async def _close(self) -> None:
        """Streams end first, so that the servers stop at once; devices stay with the pods that have them."""
        for watch in self._watches:
            watch.snapshot.close()
        for own in self._parts:
            own.snapshot.close()
        for specs in self._specs:
            specs.snapshot.close()
        for _plugin, endpoint, _snapshot in self._plugins:
            await endpoint.close()
        await self._settlement.close()
        for watch in self._watches:
            await watch.close()


def _without_devices(snapshot: Snapshot) -> bool:
    """Whether the driver works, and this node has no device of the family."""
    return snapshot.ready and not snapshot.devices


async def _once_there(snapshot: Watched[Snapshot], run: Callable[[], Coroutine[None, None, None]]) -> None:
    """Tell the kubelet nothing before the driver has shown devices: an empty list would withdraw what pods wait for.

    A family that this node has no device of stays unknown to the kubelet.
    """
    while not (snapshot.value.ready and snapshot.value.devices) and not snapshot.closed:
        await snapshot.changed(snapshot.version)
    await run()


async def serve(process: Process) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    _spare_the_collector()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = Metrics(registry, version=process.version, log_lines_dropped=process.log_lines_dropped)
    settings = process.configuration.settings
    async with connect(settings.node_name, kubeconfig=process.kubeconfig, observer=metrics) as cluster:
        daemon = Daemon(process, cluster, metrics)
        http = TelemetryServer(
            host=settings.http_host,
            port=settings.http_port,
            registry=registry,
            alive=daemon.stalled,
            ready=daemon.readiness,
            configuration=process.configuration.effective,
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
