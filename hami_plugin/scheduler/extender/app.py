"""The composition root of the scheduler process: from a configuration to a port that answers, and back.

Its status page shows the cluster as the scheduler knows it: made when somebody looks, bounded, without secrets.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from hami_plugin.cluster.client import connect_wide
from hami_plugin.config.changes import ConfigurationSource, Reloads
from hami_plugin.config.load import HAMI_DEVICE_CONFIG, Configuration, load
from hami_plugin.config.settings import SchedulerSettings
from hami_plugin.config.vendors import ServedSettings, VendorSettings
from hami_plugin.dra.conversion import ClaimVendor
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.node_status.events import events_of
from hami_plugin.process.log import logger
from hami_plugin.scheduler.engine.admission import Scheduling
from hami_plugin.scheduler.engine.devices import DeviceState
from hami_plugin.scheduler.engine.node_info import PodInfo, subtract_held
from hami_plugin.scheduler.extender.cache import Preferences
from hami_plugin.scheduler.extender.certificates import Certificates
from hami_plugin.scheduler.extender.extender import Decisions, Extender, Options, SchedulerReloader
from hami_plugin.scheduler.extender.metrics import HamiSchedulerMetrics, SchedulerMetrics
from hami_plugin.scheduler.extender.server import Server, kinds
from hami_plugin.sdk import Family, load_vendor, vendor_names
from hami_plugin.telemetry.connections import raise_descriptor_limit
from hami_plugin.telemetry.http import Probes, TelemetryServer
from hami_plugin.telemetry.process_metrics import ConfigurationMetrics

log = logger(__name__)

MAX_NODES = 200
"""Nodes that are shown and summed up, by name: what more of them took would hold up decisions."""
MAX_HOLDERS = 16
"""Pods that are named at one device."""


def cluster_status(extender: Extender, *, name: str) -> dict[str, Any]:
    """Nodes with their devices and who holds them, their sums by device type, what was refused, and the last Events."""
    cache = extender.cache
    families = {family.resources.device_type: family for family in cache.families}
    nodes: list[Mapping[str, Any]] = []
    sums: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    more = 0
    for node, info in sorted(cache.nodes.node_infos.items()):
        if not info.pools:
            continue
        if len(nodes) >= MAX_NODES:
            more += 1
            continue
        entries = cache.pods.index.on(node)
        full = subtract_held(info, cache.families, [entry.held for entry in entries])
        devices = [(families[device_type], state) for device_type, pool in full.pools.items() for state in pool.states]
        for family, state in devices:
            _count(sums[family.resources.device_type], state)
        holders = _holders(entries)
        shown = [
            _device(family, state, holders.get((family.resources.device_type, state.uuid), ()))
            for family, state in devices
        ]
        nodes.append({"name": node, "devices": shown})
    events = events_of(extender.recent)
    return {
        "scheduler": name,
        "nodes": nodes,
        "more": more,
        "sums": {device_type: dict(amounts) for device_type, amounts in sorted(sums.items())},
        "refused": [event for event in events if event["warning"]],
        "events": events,
    }


def _count(amounts: defaultdict[str, int], state: DeviceState) -> None:
    amounts["devices"] += 1
    amounts["healthy"] += state.info.health
    amounts["shares"] += state.info.count
    amounts["sharesTaken"] += state.slots
    amounts["memory"] += state.info.devmem
    amounts["memoryTaken"] += state.memory


def _holders(entries: Sequence[PodInfo]) -> Mapping[tuple[str, str], Sequence[str]]:
    """The pods of each device, by device type and UUID."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        for key in dict.fromkeys(_devices_of(entry)):
            found[key].append(entry.pod.key)
    return found


def _devices_of(entry: PodInfo) -> Iterator[tuple[str, str]]:
    for device_type, held in entry.held.items():
        for piece in held.pieces:
            for grant in piece:
                yield device_type, grant.uuid


def _device(family: Family, state: DeviceState, holders: Sequence[str]) -> Mapping[str, Any]:
    return {
        "deviceType": family.resources.device_type,
        "uuid": state.uuid,
        "index": state.index,
        "model": state.info.type,
        "healthy": state.info.health,
        "shares": state.info.count,
        "sharesTaken": state.slots,
        "memory": state.info.devmem,
        "memoryTaken": state.memory,
        "unit": "%" if family.resources.memory_in_percent else "MiB",
        "cores": family.resources.core_count(state.info.devcore),
        "coresTaken": family.resources.core_count(state.cores),
        "holders": sorted(holders)[:MAX_HOLDERS],
        "moreHolders": max(0, len(holders) - MAX_HOLDERS),
    }


_KEYS = {
    "scheduler_name": "name",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
    "client_ca": "clientCa",
    "webhook_client_ca": "webhookClientCa",
    "extender_peers": "extenderPeers",
    "gpu_scheduler_policy": "gpuSchedulerPolicy",
    "node_scheduler_policy": "nodeSchedulerPolicy",
}
_NODE = {"NODE_NAME": "scheduler"}
"""The same file serves the daemons, which need a node's name. This process has none."""


def configured(options: Mapping[str, Any], environment: Mapping[str, str]) -> Configuration:
    """Read the configuration. ``ConfigError`` holds everything that is wrong with it."""
    section: dict[str, Any] = {key: _text(options.get(option)) for option, key in _KEYS.items()}
    if names := options.get("webhook_client_name"):
        section["webhookClientNames"] = list(names)
    section |= _address(options.get("listen"), "listen") | _address(options.get("http"), "http")
    configuration = load(
        config=options.get("config"),
        device_config=options.get("device_config") or (HAMI_DEVICE_CONFIG if HAMI_DEVICE_CONFIG.exists() else None),
        node_config=None,
        overrides={
            "logLevel": options.get("log_level"),
            "logFormat": options.get("log_format"),
            "scheduler": section,
        },
        environment={**_NODE, **environment},
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=vendor_names(),
    )
    if unknown := [
        name for name in configuration.settings.scheduler.claim_vendors if name not in configuration.vendors
    ]:
        there = ", ".join(sorted(configuration.vendors))
        raise ConfigError(
            [f"scheduler.claimVendors: {name!r} is no vendor that is enabled; choose from: {there}" for name in unknown]
        )
    return configuration


def files(options: Mapping[str, Any]) -> tuple[Path, ...]:
    """The files that the configuration is read from, present or not."""
    return tuple(
        Path(path) for path in (options.get("config"), options.get("device_config") or HAMI_DEVICE_CONFIG) if path
    )


def families(configuration: Configuration) -> tuple[Family, ...]:
    """All families of the vendors that are not disabled. A node's annotations say which of them it has."""
    return tuple(
        family for name, section in configuration.vendors.items() for family in load_vendor(name).families(section)
    )


def _address(text: str | None, what: str) -> dict[str, str | None]:
    """``HOST:PORT`` as the two keys of the file; their own checks find what is wrong with it."""
    if text is None:
        return {}
    host, _, port = text.rpartition(":")
    return {f"{what}Host": host.strip("[]"), f"{what}Port": port}


def _text(value: object) -> str | None:
    """Paths as they are written in a file, made absolute: a shell's user may be anywhere."""
    return str(value.absolute()) if isinstance(value, Path) else None if value is None else str(value)


LOCK_MARGIN_S = 3.0
"""How much earlier than its call a pod gives up its place in line for a node."""
SYNC_CHECK_S = 0.5
"""How often it is seen whether the first lists have come."""
PURPOSE = "can a pod be decided on"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProcess:
    """What differs per process. Without a kubeconfig, ``$KUBECONFIG``, else the pod's own account. ``source`` is where
    the configuration may change.
    """

    configuration: Configuration
    kubeconfig: Path | None = None
    version: str = ""
    log_lines_dropped: Callable[[], int] = lambda: 0
    source: ConfigurationSource | None = None


class Scheduler:
    """An extender behind its ports. ``run`` returns after ``stop``, and raises when a part fails unexpectedly."""

    def __init__(
        self,
        configuration: Configuration,
        decisions: Decisions,
        metrics: SchedulerMetrics,
        registry: CollectorRegistry,
        *,
        ready: Callable[[], None] = lambda: None,
        reloader: SchedulerReloader | None = None,
        version: str = "",
    ) -> None:
        """``ready`` is called once, when pods can be decided on for the first time."""
        self._ready = ready
        self._reloader = reloader
        self._version = version
        settings = configuration.settings.scheduler
        self._settings = settings
        self._decisions = decisions
        self._stopping = False
        self._certificates = None
        if settings.tls_cert and settings.tls_key:
            self._certificates = Certificates(
                settings.tls_cert,
                settings.tls_key,
                client_ca=settings.client_ca,
                webhook_ca=settings.webhook_client_ca,
                metrics=metrics,
            )
        hamis = HamiSchedulerMetrics(
            lambda: decisions.extender.cache,
            lambda: self._in_force(configuration).settings.scheduler.hami_metrics,
        )
        probes = Probes(
            registry=registry,
            more_metrics=hamis.text,
            alive=tuple,
            ready=self.readiness,
            configuration=lambda: self._in_force(configuration).effective(),
            details=self._details,
            purpose=PURPOSE,
        )
        self.server = Server(
            host=settings.listen_host,
            port=settings.listen_port,
            kinds=kinds(decisions, settings),
            probes=probes,
            metrics=metrics,
        )
        plain = replace(
            probes,
            status=self._status,
            status_readers=lambda: self._in_force(configuration).settings.scheduler.status_page,
        )
        self.plain = TelemetryServer(settings.http_host, settings.http_port, plain, dropped=metrics.connection_dropped)

    def readiness(self) -> Mapping[str, str]:
        """Each component's problem; empty when it is ready. A bad new certificate is none while the old one serves."""
        return {
            "decisions": "; ".join(self._decisions.problems()),
            "process": "stopping" if self._stopping else "",
        }

    def _in_force(self, first: Configuration) -> Configuration:
        return self._reloader.configuration if self._reloader else first

    def _status(self) -> Mapping[str, Any]:
        """The cluster's state, made when somebody looks."""
        reloads = self._reloader.reloads if self._reloader else Reloads()
        return {
            **cluster_status(self._decisions.extender, name=self._settings.name),
            "version": self._version,
            "time": time.time(),
            "components": self.readiness(),
            "configuration": reloads.shown(),
        }

    def _details(self) -> Mapping[str, object]:
        return {"configuration": self._reloader.reloads.shown()} if self._reloader else {}

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
            tasks = [deciding, group.create_task(self._settle(), name="first lists")]
            if self._reloader:
                tasks.append(group.create_task(self._reloader.run(), name="configuration"))
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

    async def _settle(self) -> None:
        while self._decisions.problems():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(SYNC_CHECK_S)
        self._ready()

    async def _decide(self, ended: asyncio.Event) -> None:
        await self._decisions.run(ended)
        if not ended.is_set():
            raise HamiError("the scheduler's view of the cluster ended by itself", hint="this is a bug; its log tells")


async def serve(process: SchedulerProcess) -> None:
    """Run the scheduler until SIGTERM or SIGINT."""
    raise_descriptor_limit()
    gc.set_threshold(*RARE_COLLECTIONS)  # of what the first lists bring nothing is garbage: a third of their time
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry, version=process.version, log_lines_dropped=process.log_lines_dropped)
    try:
        async with _connected(process, metrics) as make:
            decisions = Decisions(make(process.configuration))
            reloader = _reloader(process, decisions, make)
            if reloader:
                loop.add_signal_handler(signal.SIGHUP, reloader.again)
                registry.register(ConfigurationMetrics(lambda: reloader.reloads))
            scheduler = Scheduler(
                process.configuration,
                decisions,
                metrics,
                registry,
                ready=keep_out_of_collections,
                reloader=reloader,
                version=process.version,
            )
            await scheduler.run(stop)
    finally:
        gc.set_threshold(*USUAL_COLLECTIONS)


USUAL_COLLECTIONS, RARE_COLLECTIONS = (700, 10, 10), (1_000_000, 50, 100)


def keep_out_of_collections() -> None:
    """What the first lists have brought stays. Going through thousands of nodes for garbage would hold the event loop
    for hundreds of milliseconds, whenever a large request comes; also now, when there is none.
    """
    gc.freeze()
    gc.set_threshold(*USUAL_COLLECTIONS)


Make = Callable[[Configuration], Extender]
"""An extender with this configuration, over the process's connection."""


@asynccontextmanager
async def _connected(process: SchedulerProcess, metrics: SchedulerMetrics) -> AsyncIterator[Make]:
    """The decisions, over the API server. ``ConfigError`` without usable credentials."""
    name = process.configuration.settings.scheduler.name
    connection = connect_wide(name, host=socket.gethostname(), kubeconfig=process.kubeconfig, observer=metrics)
    async with connection as cluster:

        def make(configuration: Configuration) -> Extender:
            options = _options(configuration.settings.scheduler)
            return Extender(
                cluster, families(configuration), replace(options, claim_vendors=claim_vendors(configuration))
            )

        yield make


def _reloader(process: SchedulerProcess, decisions: Decisions, make: Make) -> SchedulerReloader | None:
    if process.source is None:
        return None
    every = process.configuration.settings.scheduler.reload_seconds
    return SchedulerReloader(process.source, process.configuration, decisions, make, every=every)


def claim_vendors(configuration: Configuration) -> tuple[ClaimVendor, ...]:
    """Those whose limits become claims, with their families as they are on nodes whose front end is DRA."""
    return tuple(
        ClaimVendor(name=name, families=tuple(load_vendor(name).families(_by_claims(configuration.vendors[name]))))
        for name in configuration.settings.scheduler.claim_vendors
    )


def _by_claims(section: VendorSettings) -> VendorSettings:
    return section.model_copy(update={"front_end": "dra"}) if isinstance(section, ServedSettings) else section


def _options(settings: SchedulerSettings) -> Options:
    """The extender's options. A bind reports that it waited too long for its node, and for whom, before its call times
    out.
    """
    return Options(
        scheduling=Scheduling(name=settings.name, replaces_default=settings.replaces_default),
        preferences=Preferences(nodes=settings.node_order, devices=settings.device_order),
        refuse_impossible=settings.refuse_impossible,
        resizes=settings.resize_by_annotation,
        lock_timeout=max(1.0, settings.answer_seconds - LOCK_MARGIN_S),
    )
