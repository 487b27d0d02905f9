"""The chips as schedulable families, and how a decision is written for the node's agent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.register import decode_json
from hami_plugin.scheduler.engine.devices import Given
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules, both_keys
from vendors.ascend.admission import admission, soft
from vendors.ascend.chips import AscendSettings, Chip
from vendors.ascend.node.family import node_side
from vendors.ascend.policy import policy


def families(settings: AscendSettings, clock: Callable[[], float] = time.time) -> tuple[Family, ...]:
    """One for each chip. ``clock`` is what ``predicate-time`` is read from, in seconds since 1970."""
    return tuple(_family(chip, settings, clock) for chip in settings.chips)


def _family(chip: Chip, settings: AscendSettings, clock: Callable[[], float]) -> Family:
    keys = AnnotationKeys(
        register=f"hami.io/node-register-{chip.device_type}",
        handshake=f"hami.io/node-handshake-{chip.device_type}",
        to_allocate=f"hami.io/{chip.device_type}-devices-to-allocate",
        allocated=f"hami.io/{chip.device_type}-devices-allocated",
    )
    factor = max(1, chip.memory_factor)
    resources = Resources(count=chip.count, memory=chip.memory, cores=chip.cores, memory_factor=factor)
    rules = SchedulingRules.registered(
        resources,
        keys,
        policy(chip, soft_nodes=settings.soft),
        decode=decode_json,
        admit=admission(chip, settings.chips),
        patch=_patch(chip, clock),
    )
    node = node_side(chip, settings)
    return Family(device_type=chip.device_type, annotations=keys, resources=resources, rules=rules, node=node)


def _patch(chip: Chip, clock: Callable[[], float]) -> Patch:
    def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        entries = [_entry(chip, grant, cut=not soft(pod)) for piece in given[family.device_type] for grant in piece]
        for_agent = json.dumps(entries, separators=(",", ":"), ensure_ascii=False)
        return {
            **both_keys(family, pod, given),
            "predicate-time": str(int(clock())),
            f"huawei.com/{chip.device_type}": for_agent,
        }

    return patch


def _entry(chip: Chip, grant: Grant, *, cut: bool) -> Mapping[str, str | int]:
    """An NPU as the agent reads it; what is zero, and a whole NPU's template, is left out."""
    template = chip.template(grant.memory) if cut else None
    name = template.name if template else ""
    entry: dict[str, str | int] = {"UUID": grant.uuid, "temp": name, "memory": grant.memory, "core": grant.cores}
    return {key: value for key, value in entry.items() if value}
