"""The cards before a simulated kubelet: registration, the device list, and one Allocate through the real allocator.

The kubelet is a real gRPC peer on a real socket. The API server is a table in memory, and whatever injection asks to be
created on the host is created in a scratch directory.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cdi.edits import ContainerEdits
from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import AllocationRules, Allocator, ResourcePlugin, question_of
from hami_plugin.allocation.journal import Journal, JournalWriter
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.host.paths import HostPaths
from hami_plugin.host.threads import BoundedCalls
from hami_plugin.inventory.replicas import physical_id
from hami_plugin.kubelet.checkpoint import CheckpointFile
from hami_plugin.kubelet.listener import Listener
from hami_plugin.kubelet.registration import register, socket_name
from hami_plugin.kubelet.servicer import DevicePluginServicer
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import NullObserver
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.protocol.decisions import encode_devices
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING, PHASE_SUCCESS
from hami_plugin.sdk import Family
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors
from vendors.nvidia.gpu_check.stand_ins import NODE, ScratchHost, TableCluster
from vendors.nvidia.gpu_check.verdicts import Findings

DEADLINE_S = 15.0
MEMORY_MIB, CORES = 1024, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A kubelet with our resource registered. ``times_ms`` grows as things happen."""

    kubelet: FakeKubelet
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
    pod = _pod(family, device)
    site.pods.update(pod)
    start = time.perf_counter()
    ids = await site.kubelet.admit(pod)
    site.times_ms["admission"] = round((time.perf_counter() - start) * 1000, 3)
    edits = (await site.kubelet.start_container(pod.uid, "main")).edits
    chosen = [physical_id(name) for name in ids["main"][family.resources.count]]
    findings.equal("the kubelet's card is the scheduler's", [device.uuid], chosen)
    _edits(findings, edits, device)
    findings.equal("the pod is told", PHASE_SUCCESS, await _told(site.pods, pod.uid))


def _edits(findings: Findings, edits: ContainerEdits, device: Device) -> None:
    expected = {
        "NVIDIA_VISIBLE_DEVICES": device.uuid,
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{MEMORY_MIB}m",
        "CUDA_DEVICE_SM_LIMIT": str(CORES),
    }
    findings.equal("what the container is told", expected, {key: edits.env.get(key) for key in expected})
    mounted = sorted(mount.container_path for mount in edits.mounts)
    preloaded = "/etc/ld.so.preload"
    findings.judge("what the container has mounted", f"{preloaded} among it", mounted, same=preloaded in mounted)


@asynccontextmanager
async def _registered(family: Family, snapshot: Snapshot, scratch: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        kubelet, pods = FakeKubelet(scratch / "kubelet"), PodTable()
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        plugin = await _plugin(
            family, Watched(snapshot), pods, scratch, stack, checkpoint=CheckpointFile(kubelet.directory)
        )
        path = kubelet.directory / socket_name(plugin.resource)
        listener = await Listener.open(path, DevicePluginServicer(plugin, NullObserver()))
        stack.push_async_callback(listener.close)
        start = time.perf_counter()
        await register(kubelet.directory, plugin, path.name, timeout=DEADLINE_S)
        times = {"registration": round((time.perf_counter() - start) * 1000, 3)}
        yield Site(kubelet=kubelet, pods=pods, times_ms=times)


async def _plugin(
    family: Family,
    snapshot: Watched[Snapshot],
    pods: PodTable,
    scratch: Path,
    stack: AsyncExitStack,
    *,
    checkpoint: CheckpointFile,
) -> ResourcePlugin:
    """The daemon's parts behind one resource, wired as the daemon wires them."""
    journal = JournalWriter(Journal(scratch / "journal"))
    stack.callback(journal.close)
    cluster, ledger, live = TableCluster(pods), Ledger(journal), LiveNode()
    live.deliver(await cluster.get_node())
    settlement = Settlement(cluster, pods=pods, ledger=ledger, node=live)
    settlement.questions = [question_of(family)]
    stack.push_async_callback(settlement.close)
    allocator = Allocator(
        family,
        snapshot=snapshot,
        pods=pods,
        ledger=ledger,
        settlement=settlement,
        events=EventRecorder(cluster, NODE),
        checkpoint=checkpoint,
        host=ScratchHost(paths=HostPaths(), scratch=scratch / "host"),
        guard=Guard(BoundedCalls("gpu-check", patience=DEADLINE_S), VendorErrors("nvidia")),
        rules=AllocationRules(node=NODE),
        observer=NullObserver(),
    )
    return ResourcePlugin(allocator, None, snapshot)


def _pod(family: Family, device: Device) -> PodView:
    """As HAMi's scheduler leaves it: bound, decided, waiting for its node."""
    resources = family.resources
    grant = Grant(uuid=device.uuid, device_type=family.device_type, memory=MEMORY_MIB, cores=CORES)
    limits = {resources.count: "1", resources.memory: str(MEMORY_MIB), resources.cores: str(CORES)}
    decision = encode_devices([(grant,)])
    return PodView(
        uid=str(uuid.uuid4()),
        namespace="default",
        name="gpu-check",
        node=NODE,
        annotations={
            family.annotations.to_allocate: decision,
            family.annotations.allocated: decision,
            ASSIGNED_NODE: NODE,
            BIND_PHASE: PHASE_ALLOCATING,
        },
        containers=(ContainerView(name="main", limits=limits),),
    )


async def _told(pods: PodTable, uid: str) -> str | None:
    """The pod's phase, once it has left the one it was bound with."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen, pod = pods.changes.version, pods.get(uid)
            phase = pod.annotations.get(BIND_PHASE) if pod else None
            if phase != PHASE_ALLOCATING:
                return phase
            await pods.changes.changed(seen)
