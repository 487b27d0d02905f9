"""HAMi's reasons as sentences, with the numbers of the device at hand."""

from __future__ import annotations

from hami_plugin.scheduler.engine.fit import Policy
from hami_plugin.scheduler.engine.reasons import OURS, Reason
from hami_plugin.scheduler.engine.states import Charge, Context, DeviceState
from hami_plugin.sdk import Family

WHOLE_NODE = {
    Reason.TOO_FEW_ON_NODE: "the node has fewer devices than are asked for",
    Reason.NUMA: "no group of so many that belong together is free",
    Reason.NO_MIG_PLACE: "the instances do not fit beside each other",
    Reason.ONE_PARTITION: OURS[Reason.ONE_PARTITION],
    Reason.UNCOUNTED: OURS[Reason.UNCOUNTED],
    Reason.MODE: "the node's mode is not the one that is asked for",
}


def unit(family: Family) -> str:
    """What the family's memory is counted in."""
    return "%" if family.resources.memory_in_percent else "MiB"


def because(reason: Reason, state: DeviceState, context: Context, family: Family) -> str:
    """Why this device does not serve."""
    assert family.rules.policy  # without one nothing is asked
    policy = family.rules.policy
    match reason:
        case Reason.NO_MEMORY:
            asked, free = _charge(state, context, policy).memory, max(0, state.free_memory)
            return f"{asked} {unit(family)} are asked for, {free} are free"
        case Reason.NO_CORES:
            return f"{_charge(state, context, policy).cores} cores are asked for, {max(0, state.free_cores)} are free"
        case Reason.NO_SLOT:
            return f"all of its {state.info.count} shares are taken"
        case Reason.EXCLUSIVE:
            return f"it would be for one container alone, and {_shares(state.slots)} taken"
        case _:
            said = DEVICE.get(reason, WHOLE_NODE.get(reason, str(reason)))
            detail = policy.detail(state, reason) if policy.detail else ""
            return f"{said}: {detail}" if detail else said


DEVICE = {
    Reason.UNHEALTHY: "it is not healthy",
    Reason.SICK: "it is not healthy",
    Reason.CORDONED: "an annotation of the node keeps new pods off it",
    Reason.TYPE_MISMATCH: "its type or mode is not one that the pod accepts",
    Reason.UUID_MISMATCH: "the pod's annotations name other devices, or rule this one out",
    Reason.CORES_EXHAUSTED: "others have all of its cores, and a share without cores of its own needs some left over",
    Reason.CUSTOM_RULE: "the vendor's own rule excludes it beside what the pod has already",
    Reason.NO_MIG_PLACE: "there is no free place on it for an instance of this size",
    Reason.QOS_MISMATCH: "its tenants have another class of service",
    Reason.APP_CLASS_MISMATCH: "its tenants are of another class of application",
    Reason.WHOLE_ONLY: "the node serves whole devices only, and a part is asked for",
    Reason.NO_PARTITION: OURS[Reason.NO_PARTITION],
    Reason.QUOTA: "the namespace's quota does not cover it",
}


def overall(reason: Reason) -> str:
    """Why devices that would do are not enough."""
    return WHOLE_NODE.get(reason, DEVICE.get(reason, str(reason)))


def _charge(state: DeviceState, context: Context, policy: Policy) -> Charge:
    bill = policy.charge(state, context, ())
    return bill if isinstance(bill, Charge) else Charge()


def _shares(number: int) -> str:
    return "one share is" if number == 1 else f"{number} shares are"
