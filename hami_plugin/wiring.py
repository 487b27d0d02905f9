"""From opened vendors to what is served: devices are watched, described to runtimes, offered and handed out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hami_plugin.equipment import Equipment
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.threads import BoundedCalls, once
from hami_plugin.inventory.inventory import FamilyPart, whole
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.annotations import Source
from hami_plugin.sdk import Family
from hami_plugin.serving import Own, Serving
from hami_plugin.startup import Served
from hami_plugin.vendor_boundary.guard import Guard, Mistakes, guarded
from hami_plugin.vendor_boundary.keeper import Keeper

PATIENCE_S = 2.0
"""How long a function of a vendor's may look at the host. Until it comes back, the next are refused."""
PATIENCE_AT_START_S = 20.0


def wired(vendors: Sequence[Served], equipment: Equipment) -> Serving:
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


def _own(served: Served, equipment: Equipment) -> Own:
    name = served.vendor.name
    mistakes = Mistakes(name, equipment.metrics)
    calls = BoundedCalls(f"{name}-families", patience=PATIENCE_S)

    def observe(_changed: Snapshot) -> None:
        """Metrics tell of a vendor's devices as its families show them."""
        shown = (specs.snapshot.value for specs in own.specs)
        equipment.metrics.snapshot(name, whole(own.watch.snapshot.value, shown))

    own = Own(
        keeper=Keeper(mistakes), calls=calls, guard=Guard(calls, mistakes), watch=equipment.watch(served, observe)
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
    equipment: Equipment,
    own: Own,
    mistakes: Mistakes,
    observe: Callable[[Snapshot], None],
) -> None:
    watch, guard = own.watch, own.guard
    for plain in families:
        snapshot = watch.snapshot
        if len(families) > 1:
            part = FamilyPart(plain.word, snapshot)
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
