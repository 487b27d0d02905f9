"""What a device is billed for a demand."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.policy.demand import Demand
from hami_plugin.policy.states import Candidate, Charge, Context, DeviceState

WHOLE = 100


def memory_of(demand: Demand, state: DeviceState) -> int:
    """MiB of this device: what was asked for, or the percentage of what it has, rounded down."""
    if demand.memory:
        return demand.memory
    return state.info.devmem * demand.percent // 100 if demand.percent else 0


def asked(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """Memory and cores as asked. More cores than a whole device mean a whole device."""
    demand = context.demand
    return Charge(memory_of(demand, state), min(demand.cores, WHOLE))


def whole(state: DeviceState, _context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """All memory and all cores."""
    return Charge(memory=state.info.devmem, cores=state.info.devcore)


def slot(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """A slot, and cores if the family's requests name any. What the device registered of its own is noted."""
    return Charge(cores=context.demand.cores, notes=state.info.custom)
