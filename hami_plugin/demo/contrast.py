"""What differs by vendor: how this family is asked for, told of, locked and handed over, as the run has shown it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hami_plugin.demo.stage import Stage
from hami_plugin.model.device import Snapshot
from hami_plugin.node.annotating import Style, wanted_annotations
from hami_plugin.vendor import Family
from hami_plugin.wire import keys

_NUMBER = re.compile(r"_\d+$")
HAMIS_OWN = {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME}


async def differences(stage: Stage) -> dict[str, Any]:
    """What is this family's own, where others do it in another way."""
    return {
        "resources": _listed(_resources(stage)),
        "devices are known by": _register(stage),
        "handshake": _handshake(stage),
        "other words at the node": _listed(_others(stage)) or "none",
        "the scheduler writes at the pod": _listed(sorted(stage.written - HAMIS_OWN)),
        "a container is told by": _told(stage),
        "sharing": _sharing(stage),
        "lock": _lock(stage.family),
    }


def _resources(stage: Stage) -> Iterable[str]:
    family, names, device = stage.family, stage.family.resources, stage.devices[0]
    yield f"{names.count} ({family.node.replicas(device)} for each device)"
    if names.memory:
        unit = "MiB" if names.memory_factor == 1 else f"units of {names.memory_factor} MiB"
        yield f"{names.memory} (in {unit})"
    if names.memory_percent:
        yield f"{names.memory_percent} (in percent)"
    if names.cores:
        counted = names.cores_are_bits or names.cores_are_counted
        yield f"{names.cores} ({'by number' if counted else 'in percent'})"
    for units in family.resources.units:
        yield f"the kubelet also counts {units.resource} ({units.of_device(device)} for each device)"


def _register(stage: Stage) -> str:
    key = stage.family.annotations.register
    if not key:
        return f"the node's capacity of {stage.resource}: there is no annotation of devices"
    text = stage.annotation(key)
    forms = {"[": "a JSON list", "{": "a JSON object of the vendor's"}
    form = forms.get(text[:1], "fields parted by commas, as in HAMi 2.7")
    return f"{key}, {form}, {len(text)} characters"


def _handshake(stage: Stage) -> str:
    key = stage.family.annotations.handshake
    if not key:
        return "none"
    value = stage.annotation(key)
    return f"{key}: {value}" if value else f"{key} is left to the scheduler: it looks at the register without it"


def _others(stage: Stage) -> Iterable[str]:
    """Annotations of the node beside the register and the handshake."""
    own, snapshot = stage.family.annotations, Snapshot(devices=stage.devices, ready=True)
    wanted = wanted_annotations(stage.family, snapshot, Style()).keys() - {own.register, own.handshake}
    there = (key for key in sorted(wanted) if stage.annotation(key))
    return (f"{key} (scores of links)" if key == own.score else key for key in there)


def _told(stage: Stage) -> str:
    received = [edits for containers in stage.received.values() for edits in containers.values()]
    env = sorted({_NUMBER.sub("_<n>", name) for edits in received for name in edits.env})
    nodes = {node.path for edits in received for node in edits.device_nodes}
    mounts = {mount.container_path for edits in received for mount in edits.mounts}
    parts = (("variables", env), ("device nodes as", sorted(nodes)[:2]), ("mounts as", sorted(mounts)[:2]))
    return "; ".join(f"{what} {_listed(names)}" for what, names in parts if names)


def _sharing(stage: Stage) -> str:
    if stage.refused:
        return f"whole devices only: {stage.refused}"
    return "parts of devices are served" + (" and nothing limits containers to them" if stage.loose else "")


def _lock(family: Family) -> str:
    rule = family.rules.lock
    if rule is None:
        return "none: several pods may be bound at once"
    whose = "names the pod" if rule.named else "names nobody"
    return f"{rule.annotation}, {whose}, expires after {rule.expires_s:g} s"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
