"""One node's use-cases, wired to an API server and a kubelet in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hami_plugin.allocation.allocator import Allocator
from hami_plugin.allocation.capacity import AS_HAMI, Account, AllocationRules, NodeState
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import LockReaper, Settlement
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.ports import NullObserver
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.process.concurrency import Backoff, BoundedCalls, Watched
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors

from .builders import FAMILY, NODE, QUESTION, snapshot
from .cluster import FakeCluster
from .kubelet import FakeCheckpoint, Kubelet

SOON = Backoff(first=0.001, cap=0.005)


class Counting(NullObserver):
    def __init__(self):
        self.allocations, self.starts, self.snapshots, self.unchecked_of = [], [], [], []

    def allocation(self, resource, outcome, seconds):
        assert seconds >= 0
        self.allocations.append(str(outcome))

    def unchecked(self, resource):
        self.unchecked_of.append(resource)

    def container_start(self, resource, outcome):
        self.starts.append(str(outcome))

    def snapshot(self, vendor, snapshot):
        self.snapshots.append(snapshot)


@dataclass
class Node:
    """The parts as the daemon wires them. ``restart`` keeps the files, the cluster and the kubelet."""

    root: Path
    cluster: FakeCluster = field(default_factory=FakeCluster)
    checkpoint: FakeCheckpoint = field(default_factory=FakeCheckpoint)
    wait: float = 0.02
    serve_unannotated: bool = False
    devices: int = 4
    counted: Account | None = AS_HAMI
    outdated: str = ""
    refresh: Callable[[], bool] = lambda: False
    first: Callable[[], None] = lambda: None

    def __post_init__(self):
        self.observer = Counting()
        self.snapshot = Watched(snapshot(self.devices))
        self.pods, self.live = PodTable(self._gone, first=self.first), LiveNode()
        self.journal = JournalWriter(Journal(self.root / "journal"))
        self.ledger = Ledger(self.journal)
        self.ledger.load()
        self.events = EventRecorder(self.cluster, NODE, backoff=SOON)
        self.settlement = Settlement(
            self.cluster, pods=self.pods, ledger=self.ledger, node=self.live, backoff=SOON, together=0.0
        )
        self.settlement.questions = [QUESTION]
        self.reaper = LockReaper(
            self.cluster, pods=self.pods, node=self.live, ledger=self.ledger, questions=[QUESTION], period=0.005
        )
        self.host = HostFiles(paths=HostPaths(hook=self.root / "hook", hook_view=self.root / "hook"))
        self.guard = Guard(BoundedCalls("node-test", timeout=10.0), VendorErrors("test"))
        self.allocator = self._allocator(FAMILY)
        self.cluster.attach(self.pods, self.live)

    def use(self, family, units=None, *, proving=True):
        self.allocator = self._allocator(family, units, proving=proving)

    def decide(self, *, wait=0.02, serve_unannotated=False, counted=AS_HAMI):
        """The same node under other rules."""
        self.wait, self.serve_unannotated, self.counted = wait, serve_unannotated, counted
        self.use(FAMILY)

    def kubelet(self, **changes) -> Kubelet:
        return Kubelet(plugin=self.allocator, checkpoint=self.checkpoint, **changes)

    async def restart(self) -> "Node":
        await self.settlement.close()
        self.journal.close()
        return Node(
            root=self.root,
            cluster=self.cluster,
            checkpoint=self.checkpoint,
            wait=self.wait,
            serve_unannotated=self.serve_unannotated,
            devices=self.devices,
            counted=self.counted,
            outdated=self.outdated,
        )

    async def settled(self):
        await until(lambda: self.settlement.idle)

    async def told(self):
        """All Events so far, once they are written."""
        waiting = self.events._queue
        while not waiting.empty():
            await self.events._write(waiting.get_nowait())
        return self.cluster.events

    def _gone(self, pod):
        self.reaper.gone(pod)
        self.settlement.forget(pod.uid)
        self.ledger.drop([held.key for held in self.ledger.held.of_pod(pod.uid)])

    def _allocator(self, family, units=None, snapshot=None, *, proving=True):
        return Allocator(
            family,
            self._state(),
            snapshot=snapshot or self.snapshot,
            guard=self.guard,
            units=units,
            proving=proving,
        )

    def _state(self) -> NodeState:
        return NodeState(
            rules=AllocationRules(
                node=NODE, wait=self.wait, serve_unannotated=self.serve_unannotated, counted=self.counted
            ),
            pods=self.pods,
            ledger=self.ledger,
            settlement=self.settlement,
            checkpoint=self.checkpoint,
            events=self.events,
            host=self.host,
            observer=self.observer,
            outdated=lambda: self.outdated,
            refresh=lambda: self.refresh(),  # noqa: PLW0108  # a test may set another one
        )


async def until(condition):
    """Wait for what other tasks bring about; nothing tells of it, so look often."""
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110  # conditions are about many objects, most without a signal
            await asyncio.sleep(0.001)
