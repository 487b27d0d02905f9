"""From opened vendors to what is served: devices are watched, described to runtimes, offered and handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hami_plugin.aio import Watched
from hami_plugin.config.settings import Settings
from hami_plugin.errors import ConfigError
from hami_plugin.host.paths import HostFiles
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.node.allocation import AllocationRules, Allocator
from hami_plugin.node.discovery import Pace, Watch
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.inventory import Inventory
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.memory import HealthMemory
from hami_plugin.node.parts import FamilyPart, whole
from hami_plugin.node.plugin import ResourcePlugin
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import Checkpoint
from hami_plugin.node.registration import Source
from hami_plugin.node.settlement import Settlement
from hami_plugin.node.spec_files import SpecFiles
from hami_plugin.node.specs import SpecPublisher
from hami_plugin.node.starts import StartCheck
from hami_plugin.policy.health import Patience
from hami_plugin.policy.overcommit import AS_HAMI, EXACTLY
from hami_plugin.serving import Line, Serving
from hami_plugin.startup import Served
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor import Family, Units

COUNTED = {"hami": AS_HAMI, "exact": EXACTLY, "off": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What all vendors of a node have in common. ``outdated`` says why what is known of pods may be old, if so."""

    settings: Settings
    pods: PodTable
    ledger: Ledger
    settlement: Settlement
    checkpoint: Checkpoint
    events: EventRecorder
    host: HostFiles
    memory: HealthMemory
    directory: DirectoryWatch
    metrics: Metrics
    outdated: Callable[[], str]


def wired(vendors: Sequence[Served], parts: NodeParts) -> Serving:
    """Wire each vendor's driver, and a line for each resource of its families."""
    serving = Serving()
    for served in vendors:
        _wire(served, parts, serving)
    return serving


def _wire(served: Served, parts: NodeParts, serving: Serving) -> None:
    watch = _watch(served, parts)
    serving.watches.append(watch)
    shown: list[Watched[Snapshot]] = []
    families = served.vendor.families(served.settings)

    def observe(_changed: Snapshot) -> None:
        """Metrics tell of a vendor's devices as its families show them."""
        parts.metrics.snapshot(watch.vendor, whole(watch.snapshot.value, (one.value for one in shown)))

    for family in families:
        snapshot = watch.snapshot
        if len(families) > 1:
            own = FamilyPart(family.word, snapshot)
            serving.parts.append(own)
            snapshot = own.snapshot
        if family.delivery.cdi:
            specs = _publisher(family, snapshot, parts, [one.kind for one in serving.specs], observe)
            serving.specs.append(specs)
            snapshot = specs.snapshot
        shown.append(snapshot)
        serving.sources.append(Source(vendor=watch.vendor, family=family, snapshot=snapshot))
        serving.lines += [_line(family, snapshot, parts, units) for units in (None, *family.units)]


def _watch(served: Served, parts: NodeParts) -> Watch:
    name, health = served.vendor.name, parts.settings.health
    patience = Patience(
        suspect_looks=health.suspect_looks,
        clean_looks=health.clean_looks,
        hold=health.hold_seconds,
        hold_cap=health.hold_cap_seconds,
    )
    inventory = Inventory(patience, forget=health.forget_seconds, remembered=parts.memory.recall(name))
    return Watch(
        name,
        served.driver,
        inventory,
        pace=Pace(rescan=parts.settings.rescan_seconds, probe=health.probe_seconds),
        observer=parts.metrics,
        events=parts.events,
        remember=lambda: parts.memory.note(name, inventory.conditions),
    )


def _publisher(
    family: Family,
    found: Watched[Snapshot],
    parts: NodeParts,
    taken: Sequence[str],
    observe: Callable[[Snapshot], None],
) -> SpecPublisher:
    """Where runtimes need specs, the others see a family's devices once those are there."""
    kind = family.delivery.kind
    if kind in taken:
        raise ConfigError([f"two families would both be CDI kind {kind}; set cdi.class of one of them"])
    return SpecPublisher(
        kind,
        found,
        SpecFiles(family, parts.settings.cdi_dirs, parts.host),
        events=parts.events,
        observe=observe,
    )


def _line(family: Family, snapshot: Watched[Snapshot], parts: NodeParts, units: Units | None) -> Line:
    settings = parts.settings
    allocator = Allocator(
        family,
        snapshot=snapshot,
        pods=parts.pods,
        ledger=parts.ledger,
        settlement=parts.settlement,
        events=parts.events,
        host=parts.host,
        rules=AllocationRules(
            node=settings.node_name,
            wait=settings.decision_wait_seconds,
            serve_unannotated=settings.unannotated_pods == "serve",
            counted=COUNTED[settings.overcommit_check],
        ),
        observer=parts.metrics,
        units=units,
        outdated=parts.outdated,
    )
    plugin = ResourcePlugin(allocator, _check(allocator, parts), snapshot)
    endpoint = Endpoint(
        plugin,
        settings.kubelet_dir,
        parts.metrics,
        watch=parts.directory,
        started=parts.pods.by_creation,
        displaced=lambda words: parts.events.node("Displaced", words),
    )
    return Line(snapshot=snapshot, plugin=plugin, endpoint=endpoint)


def _check(allocator: Allocator, parts: NodeParts) -> StartCheck | None:
    if parts.settings.identity_check != "required":
        return None
    return StartCheck(
        allocator.question,
        checkpoint=parts.checkpoint,
        pods=parts.pods,
        ledger=parts.ledger,
        events=parts.events,
        observer=parts.metrics,
        fail=parts.settlement.fail,
    )
