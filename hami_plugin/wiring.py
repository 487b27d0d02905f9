"""From opened vendors to what is served: devices are watched, described to runtimes, offered and handed out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hami_plugin.aio import Watched
from hami_plugin.config.settings import Settings
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.bounded import BoundedCalls
from hami_plugin.host.paths import HostFiles
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.node.allocation import AllocationRules, Allocator
from hami_plugin.node.discovery import Pace, Watch
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.guarding import Guard, guarded
from hami_plugin.node.inventory import Inventory
from hami_plugin.node.keeping import Keeper
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.memory import HealthMemory
from hami_plugin.node.mistakes import Mistakes
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
from hami_plugin.serving import Line, Own, Serving
from hami_plugin.startup import Served
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor import Family, Units

PATIENCE_S = 2.0
"""How long the event loop waits for a function of a vendor's, once: until it comes back, the next are refused."""
PATIENCE_AT_START_S = 20.0
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
    """Wire each vendor's driver, and a line for each resource of its families.

    A vendor whose families cannot be told is left without any, and says so; the others are served.
    """
    serving = Serving(vendors=[_own(served, parts) for served in vendors])
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


def _own(served: Served, parts: NodeParts) -> Own:
    name = served.vendor.name
    mistakes = Mistakes(name, parts.metrics)
    calls = BoundedCalls(f"{name}-families", patience=PATIENCE_S)
    own = Own(keeper=Keeper(mistakes), calls=calls, watch=_watch(served, parts))
    try:
        families = calls.ask(lambda: tuple(served.vendor.families(served.settings)), patience=PATIENCE_AT_START_S)
        _wire(families, parts, own, mistakes)
    except HamiError:
        raise
    except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
        words = mistakes.made("families", error).message
        own.keeper.note("families", f"{words}; nothing of it is served until the daemon is started anew")
        return replace(own, parts=[], specs=[], sources=[], lines=[], broken=True)
    return own


def _wire(families: Sequence[Family], parts: NodeParts, own: Own, mistakes: Mistakes) -> None:
    watch, guard = own.watch, Guard(own.calls, mistakes)
    shown: list[Watched[Snapshot]] = []

    def observe(_changed: Snapshot) -> None:
        """Metrics tell of a vendor's devices as its families show them."""
        parts.metrics.snapshot(watch.vendor, whole(watch.snapshot.value, (one.value for one in shown)))

    for plain in families:
        snapshot = watch.snapshot
        if len(families) > 1:
            part = FamilyPart(plain.word, snapshot)
            own.parts.append(part)
            snapshot = part.snapshot
        if plain.delivery.cdi:
            specs = _publisher(plain, snapshot, parts, observe)
            own.specs.append(specs)
            snapshot = specs.snapshot
        shown.append(snapshot)
        family = guarded(plain, guard)
        own.sources.append(Source(vendor=watch.vendor, family=family, snapshot=snapshot, mistakes=mistakes))
        own.lines += [_line(family, snapshot, parts, units) for units in (None, *family.units)]


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
    observe: Callable[[Snapshot], None],
) -> SpecPublisher:
    """Where runtimes need specs, the others see a family's devices once those are there."""
    return SpecPublisher(
        family.delivery.kind,
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
