"""How NPUs are chosen: by type, mode and memory, together in one network, 910C by modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.scheduler.engine.devices import WHOLE, Candidate, Charge, Context, DeviceState, asked
from hami_plugin.scheduler.engine.policy import (
    CHARGED,
    ChargeCheck,
    DeviceCheck,
    Policy,
    by_group,
    standard,
    when,
    whole_modules,
)
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.scores import Decision, neutral, share_together
from vendors.ascend.admission import request, soft
from vendors.ascend.chips import MODULES, Chip

NODE_MODE = "hami-vnpu-core"
NETWORKED = "Ascend910"
"""Chips whose words begin so know which network they are in."""


def policy(chip: Chip, *, soft_nodes: bool) -> Policy:
    """``soft_nodes``: nodes serve hami-core mode unless their annotation says otherwise."""
    usual = standard(
        chip.device_type, uuids=(f"hami.io/use-{chip.device_type}-uuid", f"hami.io/no-use-{chip.device_type}-uuid")
    )
    return Policy(
        request=request(chip),
        gates=(lambda context: mode_served(context, default=soft_nodes),),
        serves=(*usual[:2], of_chip(chip.device_type), *usual[2:]),
        charge=charge(chip),
        checks=tuple(in_percent(check) for check in CHARGED),
        select=when(
            modules_wanted, whole_modules(2), when(networks_known, by_group(lambda one: network(one.state.notes)))
        ),
        limited=soft,
        score=network_share if chip.device_type.startswith(NETWORKED) else neutral,
    )


def mode_served(context: Context, *, default: bool) -> Reason | None:
    """A pod in hami-core mode needs a node that is set up for it."""
    said = context.node.annotations.get(NODE_MODE)
    served = default if said is None else said == "true"
    return Reason.MODE if soft(context.pod) and not served else None


def of_chip(device_type: str) -> DeviceCheck:
    """The NPU is this chip and not one whose name begins alike: 910B4 has half the memory of 910B4-1."""
    return lambda state, _context: None if state.info.type == device_type else Reason.TYPE_MISMATCH


def charge(chip: Chip) -> Callable[[DeviceState, Context, Sequence[Candidate]], Charge]:
    """As asked. In units of several MiB a template's size cannot be written: then it is found again."""

    def charged(state: DeviceState, context: Context, eligible: Sequence[Candidate]) -> Charge:
        bill = asked(state, context, eligible)
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


def network(notes: Mapping[str, Any] | None) -> float | None:
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
    if not all("NetworkID" in told for told in notes.values()):
        return 0.0
    return 10 * share_together(decision.pieces, lambda uuid: network(notes[uuid]))
