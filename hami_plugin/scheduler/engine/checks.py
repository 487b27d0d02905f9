"""May this device serve? One question for each function, answered by a reason against it or by None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hami_plugin.scheduler.engine.devices import WHOLE, Candidate, Context, DeviceState, collapsed, mentioned
from hami_plugin.scheduler.engine.reasons import Reason

DeviceCheck = Callable[[DeviceState, Context], Reason | None]
ChargeCheck = Callable[[Candidate, Context, Sequence[Candidate]], Reason | None]


@dataclass(frozen=True, slots=True)
class ReadFirst:
    """A check that reads the pod and the node before it sees a device: once for all devices of a container.

    ``read`` gives what the devices are then asked, or None where it would be against none of them. ``keys`` are the
    pod's annotations in which it looks for names.
    """

    read: Callable[[Context], DeviceCheck | None]
    keys: tuple[str, ...] = ()

    def __call__(self, state: DeviceState, context: Context) -> Reason | None:
        check = self.read(context)
        return check(state, context) if check else None


def prepared(checks: Iterable[DeviceCheck], context: Context) -> tuple[DeviceCheck, ...]:
    """The same checks for many devices: what has to be read is read, and those that are against none are left out."""
    asked = [check.read(context) if isinstance(check, ReadFirst) else check for check in checks]
    return tuple([check for check in asked if check])


def consulted(checks: Iterable[DeviceCheck]) -> Iterable[str]:
    """The pod's annotations that these checks look for names in."""
    return (key for check in checks if isinstance(check, ReadFirst) for key in check.keys)


def healthy(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.info.health else Reason.UNHEALTHY


def of_this_type(device_type: str) -> DeviceCheck:
    """The demand is for this family."""

    def against(_state: DeviceState, _context: Context) -> Reason:
        return Reason.TYPE_MISMATCH

    return ReadFirst(lambda context: None if context.demand.device_type == device_type else against)


def of_type(use: str, avoid: str) -> DeviceCheck:
    """The pod's annotations ``use`` and ``avoid`` list parts of type names, whatever their case.

    A list without a name in it allows nothing.
    """

    def read(context: Context) -> DeviceCheck | None:
        listings = context.lists
        wanted, unwanted = listings.names(use, str.lower), listings.names(avoid, str.lower)
        if wanted is None and unwanted is None:
            return None

        def judged(kind: str) -> bool:
            return (wanted is None or mentioned(wanted, kind)) and not mentioned(unwanted or (), kind)

        def check(state: DeviceState, _context: Context) -> Reason | None:
            kind = state.info.type
            allowed = listings.verdict((use, avoid, kind), lambda: judged(kind.lower()))
            return None if allowed else Reason.TYPE_MISMATCH

        return check

    return ReadFirst(read, keys=(use, avoid))


def named(use: str, avoid: str) -> DeviceCheck:
    """The pod's annotations ``use`` and ``avoid`` list UUIDs. A list without a name in it allows nothing."""

    def read(context: Context) -> DeviceCheck | None:
        wanted, unwanted = context.lists.names(use), context.lists.names(avoid)
        if wanted is None and unwanted is None:
            return None

        def check(state: DeviceState, _context: Context) -> Reason | None:
            allowed = (wanted is None or state.uuid in wanted) and state.uuid not in (unwanted or ())
            return None if allowed else Reason.UUID_MISMATCH

        return check

    return ReadFirst(read, keys=(use, avoid))


def free_slot(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.slots < state.info.count else Reason.NO_SLOT


def idle_device(state: DeviceState, _context: Context) -> Reason | None:
    return Reason.EXCLUSIVE if state.slots > 0 else None


alone_if_mutex = ReadFirst(lambda context: idle_device if "mutex" in context.words else None)
"""Under the order ``mutex`` nobody else has a share."""


def standard(
    device_type: str, *, uuids: tuple[str, str] | None = None, types: tuple[str, str] | None = None
) -> tuple[DeviceCheck, ...]:
    """HAMi's usual ``serves``, in its order. ``uuids`` and ``types`` are annotations: use these, avoid those."""
    by_type = (of_type(*types),) if types else ()
    by_uuid = (named(*uuids),) if uuids else ()
    return (healthy, of_this_type(device_type), *by_type, *by_uuid, free_slot, alone_if_mutex)


def free_memory(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    state = candidate.state
    return Reason.NO_MEMORY if candidate.charge.memory > state.info.devmem - state.memory else None


def free_cores(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    state = candidate.state
    return Reason.NO_CORES if candidate.charge.cores > state.info.devcore - state.cores else None


def alone_if_whole(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """All cores of a device are for one alone, also when those who are there have no cores."""
    whole = candidate.charge.cores == WHOLE == candidate.state.info.devcore
    return Reason.EXCLUSIVE if whole and candidate.state.slots > 0 else None


def cores_left(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """A share without cores runs on what others leave, so something must be left."""
    if candidate.charge.cores:
        return None
    state = candidate.state
    return Reason.CORES_EXHAUSTED if state.info.devcore != 0 and state.cores == state.info.devcore else None


CHARGED: tuple[ChargeCheck, ...] = (free_memory, free_cores, alone_if_whole, cores_left)
"""HAMi's usual ``checks``, in its order."""


def within_quota(*, memory: str, cores: str, factor: int = 1) -> ChargeCheck:
    """The namespace's quota covers the pod with this device.

    Of the eligible ones so far, the costliest that could be chosen beside it are counted, so whatever ``select`` takes
    is covered.
    """

    def check(candidate: Candidate, context: Context, eligible: Sequence[Candidate]) -> Reason | None:
        demand, quota = context.demand, context.quota
        if not quota.limits:
            return None
        others = context.demand.count - 1
        costly = sorted(eligible, key=lambda other: (other.charge.memory, other.charge.cores), reverse=True)[:others]
        piece = tuple(one.grant(demand.device_type) for one in (*costly, candidate))
        pod = collapsed((*context.given.get(demand.device_type, ()), piece), context.inits)
        enough = quota.allows(memory, sum(grant.memory for grant in pod), factor)
        enough = enough and quota.allows(cores, sum(grant.cores for grant in pod))
        return None if enough else Reason.QUOTA

    return check


def on_the_pods_device(candidate: Candidate, context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """Whatever the pod's other containers have is this same device."""
    given = context.given.get(context.demand.device_type, ())
    elsewhere = any(grant.uuid != candidate.uuid for piece in given for grant in piece)
    return Reason.CUSTOM_RULE if elsewhere else None
