"""What all vendors of a node have in common, and what each vendor is equipped with by it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import AllocationRules, Allocator, ResourcePlugin
from hami_plugin.allocation.container_start import StartCheck
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.overcommit import AS_HAMI, EXACTLY
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.startup import Served
from hami_plugin.daemon.supervisor import ServedResource, Serving, VendorTasks
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.host.threads import BoundedCalls, once
from hami_plugin.inventory.cdi_specs import SpecFiles, SpecPublisher
from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.inventory.inventory import FamilyPart, Inventory, whole
from hami_plugin.kubelet.endpoint import Endpoint, PluginDirectory
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import Checkpoint
from hami_plugin.node_status.annotations import Source
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.sdk import Family, Units
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors, guarded
from hami_plugin.vendor_boundary.supervisor import VendorSupervisor

COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorBuilder:
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
    company: PluginDirectory
    metrics: Metrics
    outdated: Callable[[], str]
    refresh: Callable[[], bool]

    def watch(self, served: Served, observe: Callable[[Snapshot], None]) -> DiscoveryLoop:
        """A vendor's, over its driver. ``observe`` is told of its devices after each look."""
        name, health = served.vendor.name, self.settings.health
        patience = HealthLimits(
            suspect_looks=health.suspect_looks,
            clean_looks=health.clean_looks,
            hold=health.hold_seconds,
            hold_cap=health.hold_cap_seconds,
        )
        inventory = Inventory(patience, forget=health.forget_seconds, remembered=self.memory.recall(name))
        return DiscoveryLoop(
            name,
            served.driver,
            inventory,
            pace=DiscoveryTiming(rescan=self.settings.rescan_seconds, probe=health.probe_seconds),
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

    def host_check(self, family: Family, snapshot: Watched[Snapshot], mistakes: VendorErrors) -> HostCheck:
        """What the containers of a family would miss on this host."""
        return HostCheck(family, snapshot=snapshot, host=self.host, events=self.events, mistakes=mistakes)

    def line(self, family: Family, snapshot: Watched[Snapshot], units: Units | None, guard: Guard) -> ServedResource:
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
        return ServedResource(snapshot=snapshot, plugin=plugin, endpoint=endpoint)

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


PATIENCE_S = 2.0
"""How long a function of a vendor's may look at the host. Until it comes back, the next are refused."""
PATIENCE_AT_START_S = 20.0


def wired(vendors: Sequence[Served], equipment: VendorBuilder) -> Serving:
    """Wire each vendor's driver, and a line for each resource of its families.

    A vendor whose families cannot be told is left without any, and says so; the others are served.
    """
    serving = Serving(vendors=[_own(served, equipment) for served in vendors])
    _require_apart(serving)
    return serving


def _require_apart(serving: Serving) -> None:
    """``ConfigError`` where two would speak under one name: one of them would be taken for the other."""
    kinds = Counter(specs.kind for own in serving.vendors for specs in own.specs)
    problems = [
        f"two families would both be CDI kind {kind}; set cdi.class of one of them"
        for kind, n in kinds.items()
        if n > 1
    ]
    resources: defaultdict[str, list[str]] = defaultdict(list)
    for own in serving.vendors:
        for line in own.lines:
            resources[line.endpoint.socket.name].append(f"{line.plugin.resource} of {own.watch.vendor}")
    problems += [
        f"{' and '.join(names)} would be served on the same socket, {socket}; give one of them another resource name"
        for socket, names in resources.items()
        if len(names) > 1
    ]
    if problems:
        raise ConfigError(problems)


def _own(served: Served, equipment: VendorBuilder) -> VendorTasks:
    name = served.vendor.name
    mistakes = VendorErrors(name, equipment.metrics)
    calls = BoundedCalls(f"{name}-families", patience=PATIENCE_S)

    def observe(_changed: Snapshot) -> None:
        """Metrics tell of a vendor's devices as its families show them."""
        shown = (specs.snapshot.value for specs in own.specs)
        equipment.metrics.snapshot(name, whole(own.watch.snapshot.value, shown))

    own = VendorTasks(
        keeper=VendorSupervisor(mistakes),
        calls=calls,
        guard=Guard(calls, mistakes),
        watch=equipment.watch(served, observe),
    )
    try:
        told = partial(_families, served)
        families = once(f"families of {name}", told, patience=PATIENCE_AT_START_S)
        _wire(families, equipment, own, mistakes, observe)
    except HamiError:
        raise
    except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
        words = mistakes.made("families", error).message
        own.keeper.note("families", f"{words}; nothing of it is served until the daemon is started anew")
        return replace(own, parts=[], specs=[], sources=[], lines=[], hosts=[], broken=True)
    return own


def _families(served: Served) -> tuple[Family, ...]:
    return tuple(served.vendor.families(served.settings))


def _wire(
    families: Sequence[Family],
    equipment: VendorBuilder,
    own: VendorTasks,
    mistakes: VendorErrors,
    observe: Callable[[Snapshot], None],
) -> None:
    watch, guard = own.watch, own.guard
    for plain in families:
        snapshot = watch.snapshot
        if len(families) > 1:
            part = FamilyPart(plain.device_type, snapshot)
            own.parts.append(part)
            snapshot = part.snapshot
        if plain.node.delivery.cdi:
            specs = equipment.publisher(plain, snapshot, observe)
            own.specs.append(specs)
            snapshot = specs.snapshot
        if plain.node.needs_host:
            own.hosts.append(equipment.host_check(plain, snapshot, mistakes))
        family = guarded(plain, guard)
        own.sources.append(Source(vendor=watch.vendor, family=family, snapshot=snapshot, mistakes=mistakes))
        own.lines += [equipment.line(family, snapshot, units, guard) for units in (None, *family.resources.units)]
