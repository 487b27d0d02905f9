"""What the daemon makes of the cards: discovery, annotations, registration with a kubelet, and one Allocate.

The driver is the daemon's own, on the real library. The kubelet and the API server are simulated peers on real sockets,
and whatever injection asks to be created on the host is created in a scratch directory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdi.spec import ContainerEdits
from hami_plugin.allocation.allocator import Allocator, question_of
from hami_plugin.allocation.capacity import AllocationRules, NodeState
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.cluster.client import ApiServer, connect
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.kubelet.endpoint import register, socket_name
from hami_plugin.kubelet.holders import CheckpointFile
from hami_plugin.kubelet.listener import Listener
from hami_plugin.kubelet.servicer import DevicePluginServicer
from hami_plugin.model.device import Device, Discovery, Health, Sighting, Snapshot, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import NullObserver
from hami_plugin.model.views import pod_view
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import LiveNode, Style, wanted_annotations
from hami_plugin.process.concurrency import BoundedCalls, Watched, cancel
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING, PHASE_SUCCESS
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors
from tools.gpu_check.findings import Findings
from tools.gpu_check.library import Timings, loader
from vendors.nvidia import VENDOR
from vendors.nvidia.driver import NvmlDriver
from vendors.nvidia.settings import NvidiaSettings

CHOSEN_FAULTS = frozenset({"MigEnabled", "ExclusiveComputeMode", "ProhibitedComputeMode"})
"""What an administrator has set up so. It keeps a card from being shared, and is no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the driver showed. Times in milliseconds: the first look opens the library."""

    snapshot: Snapshot
    discovery: Discovery
    family: Family
    annotations: Mapping[str, str | None]
    times_ms: Mapping[str, float]


def look(settings: NvidiaSettings, paths: HostPaths, timings: Timings) -> Look:
    """``DriverUnavailableError`` when there is no driver or no card."""
    driver = NvmlDriver(settings, paths, load=loader(timings))
    try:
        moments = [time.perf_counter()]
        driver.discover()
        moments.append(time.perf_counter())
        discovery = driver.discover()
        moments.append(time.perf_counter())
        links = driver.links()
        moments.append(time.perf_counter())
    finally:
        driver.close()
    devices = sorted(map(_described, discovery.sightings), key=lambda device: device.index)
    snapshot = Snapshot(devices=tuple(devices), links=links, ready=True, reason="", facts=discovery.facts)
    (family,) = VENDOR.families(settings)
    spans = zip(("first look", "second look", "links"), moments, moments[1:], strict=False)
    return Look(
        snapshot=snapshot,
        discovery=discovery,
        family=family,
        annotations=wanted_annotations(family, snapshot, Style()),
        times_ms={name: round((end - start) * 1000, 3) for name, start, end in spans},
    )


def check_discovery(findings: Findings, seen: Look, count: int) -> None:
    """Every card is seen, well and measured."""
    with findings.about("discovery"):
        findings.equal("cards", count, len(seen.snapshot.devices))
        findings.equal("cards that nobody could name", [], list(seen.discovery.problems))
        pairs = len(seen.snapshot.devices) * (len(seen.snapshot.devices) - 1) // 2
        findings.equal("pairs that were measured", pairs, len(seen.snapshot.links.pairs))
        findings.equal("links that could not be measured", [], list(seen.snapshot.links.problems))
        findings.equal("pairs whose directions differ", [], list(seen.snapshot.links.asymmetric))
    for sighting in seen.discovery.sightings:
        with findings.about("discovery", sighting.device.index):
            fault = sighting.fault
            if fault and fault.reason in CHOSEN_FAULTS:
                findings.not_applicable("fault", fault.message, fault.reason)
            else:
                findings.equal("fault", None, fault and f"{fault.reason}: {fault.message}")


def _described(sighting: Sighting) -> Device:
    fault = sighting.fault
    if fault is None:
        return sighting.device
    return replace(sighting.device, health=Health.UNHEALTHY, reason=fault.reason, message=fault.message)


NODE = "gpu-check"
HAMI_CORE = ("libvgpu.so", "ld.so.preload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchHost(HostFiles):
    """Reads the host as it is, and writes below ``scratch`` alone. HAMi-core counts as installed: nothing runs here."""

    scratch: Path

    def is_file(self, path: str | Path) -> bool:
        return Path(path).name in HAMI_CORE or HostFiles.is_file(self, path)

    def read(self, path: str | Path, *, most: int = 65536) -> bytes:
        installed = str(Path(path).with_name("libvgpu.so")) if Path(path).name == "ld.so.preload" else ""
        return installed.encode() or HostFiles.read(self, path, most=most)

    def writable(self, path: str | Path) -> Path:
        return self.scratch / Path(path).relative_to("/")


DEADLINE_S = 15.0
MEMORY_MIB, CORES = 1024, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A kubelet with our resource registered. ``times_ms`` grows as things happen."""

    kubelet: FakeKubelet
    api: SimulatedApiServer
    pods: PodTable
    times_ms: dict[str, float]


async def check_kubelet(findings: Findings, family: Family, snapshot: Snapshot, scratch: Path) -> Mapping[str, float]:
    """Register, compare what the kubelet makes of it, and have one pod admitted. Answers how long things took."""
    offered = [device for device in snapshot.devices if device.health.offered]
    resource = family.resources.count
    with findings.about("kubelet"):
        async with asyncio.timeout(4 * DEADLINE_S), _registered(family, snapshot, scratch) as site:
            every = sum(family.node.replicas(device) for device in snapshot.devices)
            well = sum(family.node.replicas(device) for device in offered)
            await site.kubelet.until(lambda: site.kubelet.capacity(resource) == every, within=DEADLINE_S)
            findings.equal("capacity", every, site.kubelet.capacity(resource))
            findings.equal("allocatable", well, site.kubelet.allocatable(resource))
            if offered:
                await _admit(findings, site, family, offered[-1])
            else:
                findings.not_done("Allocate", "no card is offered; the faults are among the checks of discovery")
            return site.times_ms


async def _admit(findings: Findings, site: Site, family: Family, device: Device) -> None:
    """A scheduler has chosen ``device`` for a pod; the kubelet admits the pod."""
    pod = pod_view(site.api.create_pod(_pod(family, device)))
    start = time.perf_counter()
    ids = await site.kubelet.admit(pod)
    site.times_ms["admission"] = round((time.perf_counter() - start) * 1000, 3)
    edits = (await site.kubelet.start_container(pod.uid, "main")).edits
    chosen = [physical_id(name) for name in ids["main"][family.resources.count]]
    findings.equal("the kubelet's card is the scheduler's", [device.uuid], chosen)
    _edits(findings, edits, device)
    findings.equal("the pod's phase", PHASE_SUCCESS, await _phase(site.pods, pod.uid))


def _edits(findings: Findings, edits: ContainerEdits, device: Device) -> None:
    expected = {
        "NVIDIA_VISIBLE_DEVICES": device.uuid,
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{MEMORY_MIB}m",
        "CUDA_DEVICE_SM_LIMIT": str(CORES),
    }
    findings.equal("the container's environment", expected, {key: edits.env.get(key) for key in expected})
    mounted = sorted(mount.container_path for mount in edits.mounts)
    preloaded = "/etc/ld.so.preload"
    findings.judge("the container's mounts", f"{preloaded} among it", mounted, same=preloaded in mounted)


@asynccontextmanager
async def _registered(family: Family, snapshot: Snapshot, scratch: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        kubelet, pods = FakeKubelet(scratch / "kubelet"), PodTable()
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        api = await stack.enter_async_context(SimulatedApiServer())
        api.create_node(NODE)
        cluster = await stack.enter_async_context(
            connect(NODE, kubeconfig=api.write_kubeconfig(scratch / "kubeconfig"))
        )
        following = asyncio.ensure_future(cluster.follow_pods(pods.feed))
        stack.push_async_callback(cancel, following)
        plugin = await _plugin(
            stack, family, Watched(snapshot), pods=pods, cluster=cluster, kubelet=kubelet.directory, scratch=scratch
        )
        path = kubelet.directory / socket_name(plugin.resource)
        listener = await Listener.open(path, DevicePluginServicer(plugin, NullObserver()))
        stack.push_async_callback(listener.close)
        start = time.perf_counter()
        await register(kubelet.directory, plugin, path.name, timeout=DEADLINE_S)
        times = {"registration": round((time.perf_counter() - start) * 1000, 3)}
        yield Site(kubelet=kubelet, api=api, pods=pods, times_ms=times)


async def _plugin(
    stack: AsyncExitStack,
    family: Family,
    snapshot: Watched[Snapshot],
    *,
    pods: PodTable,
    cluster: ApiServer,
    kubelet: Path,
    scratch: Path,
) -> Allocator:
    """The daemon's parts behind one resource, wired as the daemon wires them."""
    journal = JournalWriter(Journal(scratch / "journal"))
    stack.callback(journal.close)
    ledger, live = Ledger(journal), LiveNode()
    live.deliver(await cluster.get_node())
    settlement = Settlement(cluster, pods=pods, ledger=ledger, node=live)
    settlement.questions = [question_of(family)]
    stack.push_async_callback(settlement.close)
    state = NodeState(
        rules=AllocationRules(node=NODE),
        pods=pods,
        ledger=ledger,
        settlement=settlement,
        checkpoint=CheckpointFile(kubelet),
        events=EventRecorder(cluster, NODE),
        host=ScratchHost(paths=HostPaths(), scratch=scratch / "host"),
        observer=NullObserver(),
    )
    guard = Guard(BoundedCalls("gpu-check", timeout=DEADLINE_S), VendorErrors("nvidia"))
    return Allocator(family, state, snapshot=snapshot, guard=guard, proving=False)


def _pod(family: Family, device: Device) -> dict[str, Any]:
    """As HAMi's scheduler leaves it: bound, decided, waiting for its node."""
    resources, keys = family.resources, family.rules.annotations
    grant = Grant(uuid=device.uuid, device_type=family.resources.device_type, memory=MEMORY_MIB, cores=CORES)
    limits = {resources.count: "1", resources.memory: str(MEMORY_MIB), resources.cores: str(CORES)}
    decision = encode_devices([(grant,)])
    annotations = {keys.to_allocate: decision, keys.allocated: decision}
    annotations |= {ASSIGNED_NODE: NODE, BIND_PHASE: PHASE_ALLOCATING}
    return {
        "metadata": {"name": "gpu-check", "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


async def _phase(pods: PodTable, uid: str) -> str | None:
    """The pod's phase, once it has left the one it was bound with."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen, pod = pods.changes.version, pods.get(uid)
            phase = pod.annotations.get(BIND_PHASE) if pod else None
            if phase != PHASE_ALLOCATING:
                return phase
            await pods.changes.changed(seen)
