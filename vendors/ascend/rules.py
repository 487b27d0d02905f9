"""How NPUs are requested, admitted, chosen and written down for the node's agent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView, whole
from hami_plugin.protocol.nodes import decode_json
from hami_plugin.scheduler.engine.devices import (
    INT32_MAX,
    WHOLE,
    Admit,
    Admitted,
    Candidate,
    Charge,
    Context,
    Denied,
    DeviceState,
    Given,
    Reason,
    Request,
    amount,
    charge_request,
    count_request,
    limit_or_request,
)
from hami_plugin.scheduler.engine.policy import (
    CHARGED,
    ChargeCheck,
    Decision,
    DeviceCheck,
    Policy,
    by_group,
    neutral,
    share_together,
    standard,
    when,
    whole_modules,
)
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules, both_keys
from vendors.ascend.settings import MODULES, AscendSettings, Chip

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
HIDDEN = {"ASCEND_VISIBLE_DEVICES": ""}


def soft(pod: PodView) -> bool:
    """Whether the pod's chips are shared by HAMi's core; otherwise they are cut by templates."""
    return pod.annotations.get(MODE) == SOFT


def request(chip: Chip) -> Request:
    """A number of NPUs, each with memory and cores; whole ones when nothing is said of memory."""
    return count_request(
        chip.device_type,
        count=amount(chip.count, least=1),
        memory=amount(chip.memory, factor=chip.memory_factor, fraction="ignore"),
        cores=amount(chip.cores, fraction="round up"),
    )


def admission(chip: Chip, chips: Sequence[Chip]) -> Admit:
    """The container's NPUs and memory as it will get them. ``chips`` are all that there are."""

    def admit(container: ContainerView, pod: PodView) -> Admitted | Denied:
        if chip.count not in container.limits:
            hide = chip.overwrite_env and not any(other.count in container.limits for other in chips)
            return Admitted(found=False, env=HIDDEN if hide else {})
        try:
            return _admitted(chip, container, cut=not soft(pod))
        except ValueError as error:
            return Denied(why=f"container {container.name!r}: {error}")

    return admit


def _admitted(chip: Chip, container: ContainerView, *, cut: bool) -> Admitted | Denied:
    asked = whole(container.limits[chip.count])
    count = _whole_modules(chip, asked)
    if cut and whole(limit_or_request(container, chip.cores) or "0") > 0:
        raise ValueError(f"{chip.cores} is for pods with the annotation {MODE}: {SOFT}; leave it out, or add that")
    factor = max(1, chip.memory_factor)
    mib = chip.memory_allocatable
    if chip.memory in container.limits:
        mib = _memory(chip, whole(container.limits[chip.memory]) * factor, cut=cut)
    if cut and asked > 1 and mib != chip.memory_allocatable:
        raise ValueError(f"{chip.count}={asked} with {mib} MiB each: several NPUs are granted whole; leave out memory")
    memory = {chip.memory: str(mib // factor)}
    changed = {} if count == asked else {chip.count: str(count)}
    return Admitted(
        found=True,
        limits={**changed, **memory},
        requests={**(changed if chip.count in container.requests else {}), **memory},
        runtime_class=chip.runtime_class,
    )


def _whole_modules(chip: Chip, asked: int) -> int:
    if chip.device_type != MODULES or not chip.super_pod or asked % 2 == 0:
        return asked
    if asked != 1:
        raise ValueError(f"{chip.count}={asked}: two NPUs are one module; ask for 1 or an even number")
    return 2


def _memory(chip: Chip, mib: int, *, cut: bool) -> int:
    found = chip.cut(mib) if cut else mib
    if found is None or found > INT32_MAX:
        raise ValueError(f"{chip.memory}: {mib} MiB is more than an NPU has; it has {chip.memory_capacity}")
    return found


NODE_MODE = "hami-vnpu-core"
NETWORKED = "Ascend910"
"""Chips whose names begin so know which network they are in."""


def policy(chip: Chip, *, soft_nodes: bool) -> Policy:
    """``soft_nodes``: nodes serve hami-core mode unless their annotation says otherwise."""
    usual = standard(
        chip.device_type, uuids=(f"hami.io/use-{chip.device_type}-uuid", f"hami.io/no-use-{chip.device_type}-uuid")
    )
    return Policy(
        request=request(chip),
        gates=(lambda context: mode_served(context, default=soft_nodes),),
        serves=(*usual[:2], of_chip(chip.device_type), *usual[2:]),
        charge=charge_for(chip),
        checks=tuple(in_percent(check) for check in CHARGED),
        select=when(
            modules_wanted, whole_modules(2), when(networks_known, by_group(lambda one: network_id(one.state.notes)))
        ),
        limited=soft,
        score=network_share if chip.device_type.startswith(NETWORKED) else neutral,
    )


def mode_served(context: Context, *, default: bool) -> Reason | None:
    """A pod in hami-core mode needs a node that is set up for it."""
    declared = context.node.annotations.get(NODE_MODE)
    served = default if declared is None else declared == "true"
    return Reason.MODE if soft(context.pod) and not served else None


def of_chip(device_type: str) -> DeviceCheck:
    """The NPU is this chip and not one whose name begins alike: 910B4 has half the memory of 910B4-1."""
    return lambda state, _context: None if state.info.type == device_type else Reason.TYPE_MISMATCH


def charge_for(chip: Chip) -> Callable[[DeviceState, Context, Sequence[Candidate]], Charge]:
    """As asked. In units of several MiB a template's size cannot be written: then it is found again."""

    def charged(state: DeviceState, context: Context, eligible: Sequence[Candidate]) -> Charge:
        bill = charge_request(state, context, eligible)
        exact = chip.memory_factor <= 1 or soft(context.pod)
        memory = bill.memory if exact else chip.cut(bill.memory) or bill.memory
        return bill._replace(memory=memory, notes=state.notes or None)

    return charged


def in_percent(check: ChargeCheck) -> ChargeCheck:
    """In hami-core mode cores are percent, whatever number of AI cores the NPU registered."""

    def checked(candidate: Candidate, context: Context, eligible: Sequence[Candidate]) -> Reason | None:
        if soft(context.pod):
            info = replace(candidate.state.info, devcore=WHOLE)
            candidate = candidate._replace(state=replace(candidate.state, info=info))
        return check(candidate, context, eligible)

    return checked


def network_id(notes: Mapping[str, Any] | None) -> float | None:
    """The number of the network that an NPU is in, if it says so."""
    number = (notes or {}).get("NetworkID")
    return number if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def modules_wanted(context: Context) -> bool:
    return context.demand.device_type == MODULES and context.demand.count > 1


def networks_known(context: Context) -> bool:
    """Several NPUs are wanted of chips that all say which network they are in."""
    demand = context.demand
    known = all("NetworkID" in state.notes for state in context.states)
    return demand.count > 1 and demand.device_type.startswith(NETWORKED) and known


def network_share(decision: Decision) -> float:
    """10 for each container whose NPUs are all in one network, less for others; 0 if an NPU's network is unknown."""
    notes = {grant.uuid: grant.notes or {} for piece in decision.pieces for grant in piece}
    if not all("NetworkID" in noted for noted in notes.values()):
        return 0.0
    return 10 * share_together(decision.pieces, lambda uuid: network_id(notes[uuid]))


def families(settings: AscendSettings, clock: Callable[[], float] = time.time) -> tuple[Family, ...]:
    """One for each chip. ``clock`` is what ``predicate-time`` is read from, in seconds since 1970."""
    return tuple(_family(chip, settings, clock) for chip in settings.chips)


def _family(chip: Chip, settings: AscendSettings, clock: Callable[[], float]) -> Family:
    keys = AnnotationKeys(
        register=f"hami.io/node-register-{chip.device_type}",
        handshake=f"hami.io/node-handshake-{chip.device_type}",
        to_allocate=f"hami.io/{chip.device_type}-devices-to-allocate",
        allocated=f"hami.io/{chip.device_type}-devices-allocated",
        others=(NODE_MODE,),
    )
    resources = Resources(
        device_type=chip.device_type,
        count=chip.count,
        memory=chip.memory,
        cores=chip.cores,
        memory_factor=max(1, chip.memory_factor),
    )
    rules = SchedulingRules.registered(
        resources,
        keys,
        policy(chip, soft_nodes=settings.soft),
        decode=decode_json,
        admit=admission(chip, settings.chips),
        patch=_patch(chip, clock),
    )
    return Family(resources=resources, rules=rules)


def _patch(chip: Chip, clock: Callable[[], float]) -> Patch:
    def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        entries = [
            _entry(chip, grant, cut=not soft(pod)) for piece in given[family.resources.device_type] for grant in piece
        ]
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
