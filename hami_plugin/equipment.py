"""What all vendors of a node have in common, and what each vendor is equipped with by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import AllocationRules, Allocator, ResourcePlugin
from hami_plugin.allocation.container_start import StartCheck
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.overcommit import AS_HAMI, EXACTLY
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.config.settings import Settings
from hami_plugin.host.paths import HostFiles
from hami_plugin.inventory.cdi_specs import SpecFiles, SpecPublisher
from hami_plugin.inventory.discovery import Pace, Watch
from hami_plugin.inventory.health import Patience
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.kubelet.endpoint import Company, Endpoint
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import Checkpoint
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.sdk import Family, Units
from hami_plugin.serving import Line
from hami_plugin.startup import Served
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import Guard, Mistakes

COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What is there once for all vendors.

    ``outdated`` says why what is known of pods may be old, if so; ``refresh`` has them read again, if it is its turn.
    """

    settings: Settings
    pods: PodTable
    ledger: Ledger
    settlement: Settlement
    checkpoint: Checkpoint
    events: EventRecorder
    host: HostFiles
    memory: HealthMemory
    directory: DirectoryWatch
    company: Company
    metrics: Metrics
    outdated: Callable[[], str]
    refresh: Callable[[], bool]

    def watch(self, served: Served, observe: Callable[[Snapshot], None]) -> Watch:
        """A vendor's, over its driver. ``observe`` is told of its devices after each look."""
        name, health = served.vendor.name, self.settings.health
        patience = Patience(
            suspect_looks=health.suspect_looks,
            clean_looks=health.clean_looks,
            hold=health.hold_seconds,
            hold_cap=health.hold_cap_seconds,
        )
        inventory = Inventory(patience, forget=health.forget_seconds, remembered=self.memory.recall(name))
        return Watch(
            name,
            served.driver,
            inventory,
            pace=Pace(rescan=self.settings.rescan_seconds, probe=health.probe_seconds),
            observer=self.metrics,
            events=self.events,
            observe=observe,
            remember=lambda: self.memory.note(name, inventory.conditions),
        )

    def publisher(self, family: Family, found: Watched[Snapshot], observe: Callable[[Snapshot], None]) -> SpecPublisher:
        """Where runtimes need specs, the others see a family's devices once those are there."""
        return SpecPublisher(
            family.node.delivery.kind,
            found,
            SpecFiles(family, self.settings.cdi_dirs, self.host),
            events=self.events,
            observe=observe,
        )

    def host_check(self, family: Family, snapshot: Watched[Snapshot], mistakes: Mistakes) -> HostCheck:
        """What the containers of a family would miss on this host."""
        return HostCheck(family, snapshot=snapshot, host=self.host, events=self.events, mistakes=mistakes)

    def line(self, family: Family, snapshot: Watched[Snapshot], units: Units | None, guard: Guard) -> Line:
        """One resource's, from its devices to the kubelet."""
        settings = self.settings
        allocator = Allocator(
            family,
            snapshot=snapshot,
            pods=self.pods,
            ledger=self.ledger,
            settlement=self.settlement,
            events=self.events,
            checkpoint=self.checkpoint,
            host=self.host,
            guard=guard,
            rules=AllocationRules(
                node=settings.node_name,
                wait=settings.decision_wait_seconds,
                serve_unannotated=settings.unannotated_pods == "serve",
                counted=COUNTED[settings.overcommit_check],
            ),
            observer=self.metrics,
            units=units,
            outdated=self.outdated,
            refresh=self.refresh,
        )
        plugin = ResourcePlugin(allocator, self._check(allocator), snapshot)
        endpoint = Endpoint(
            plugin,
            settings.kubelet_dir,
            self.metrics,
            watch=self.directory,
            company=self.company,
            displaced=lambda words: self.events.node("Displaced", words),
        )
        return Line(snapshot=snapshot, plugin=plugin, endpoint=endpoint)

    def _check(self, allocator: Allocator) -> StartCheck | None:
        if self.settings.identity_check != "required":
            return None
        return StartCheck(
            allocator.question,
            checkpoint=self.checkpoint,
            pods=self.pods,
            ledger=self.ledger,
            events=self.events,
            observer=self.metrics,
            fail=self.settlement.fail,
            afresh=allocator.afresh,
        )
