"""May this device serve? One question for each function, answered by a reason against it or by None."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_plugin.policy.charges import WHOLE
from hami_plugin.policy.collapse import collapsed
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import Candidate, Context, DeviceState

DeviceCheck = Callable[[DeviceState, Context], Reason | None]
ChargeCheck = Callable[[Candidate, Context, Sequence[Candidate]], Reason | None]


def healthy(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.info.health else Reason.UNHEALTHY


def for_word(word: str) -> DeviceCheck:
    """The demand is for this family."""
    return lambda _state, context: None if context.demand.word == word else Reason.TYPE_MISMATCH


def of_type(use: str, avoid: str) -> DeviceCheck:
    """The pod's annotations ``use`` and ``avoid`` list parts of type names, whatever their case.

    A list without a name in it allows nothing.
    """

    def check(state: DeviceState, context: Context) -> Reason | None:
        kind = state.info.type.lower()
        wanted, unwanted = (context.pod.annotations.get(key, "").strip().lower() for key in (use, avoid))
        if wanted and not any(name in kind for name in _named(wanted)):
            return Reason.TYPE_MISMATCH
        return Reason.TYPE_MISMATCH if any(name in kind for name in _named(unwanted)) else None

    return check


def named(use: str, avoid: str) -> DeviceCheck:
    """The pod's annotations ``use`` and ``avoid`` list UUIDs. A list without a name in it allows nothing."""

    def check(state: DeviceState, context: Context) -> Reason | None:
        wanted, unwanted = (context.pod.annotations.get(key, "").strip() for key in (use, avoid))
        if wanted and state.uuid not in _listed(wanted):
            return Reason.UUID_MISMATCH
        return Reason.UUID_MISMATCH if unwanted and state.uuid in _listed(unwanted) else None

    return check


def free_slot(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.slots < state.info.count else Reason.NO_SLOT


def alone_if_mutex(state: DeviceState, context: Context) -> Reason | None:
    """Under the order ``mutex`` nobody else has a share."""
    return Reason.EXCLUSIVE if state.slots > 0 and "mutex" in context.words else None


def idle_device(state: DeviceState, _context: Context) -> Reason | None:
    return Reason.EXCLUSIVE if state.slots > 0 else None


def standard(
    word: str, *, uuids: tuple[str, str] | None = None, types: tuple[str, str] | None = None
) -> tuple[DeviceCheck, ...]:
    """HAMi's usual ``serves``, in its order. ``uuids`` and ``types`` are annotations: use these, avoid those."""
    by_type = (of_type(*types),) if types else ()
    by_uuid = (named(*uuids),) if uuids else ()
    return (healthy, for_word(word), *by_type, *by_uuid, free_slot, alone_if_mutex)


def free_memory(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    return Reason.NO_MEMORY if candidate.charge.memory > candidate.state.free_memory else None


def free_cores(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    return Reason.NO_CORES if candidate.charge.cores > candidate.state.free_cores else None


def alone_if_whole(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """All cores of a device are for one alone, also when those who are there have no cores."""
    state = candidate.state
    whole = state.info.devcore == candidate.charge.cores == WHOLE
    return Reason.EXCLUSIVE if whole and state.slots > 0 else None


def cores_left(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """A share without cores runs on what others leave, so something must be left."""
    state = candidate.state
    full = state.info.devcore != 0 and state.cores == state.info.devcore
    return Reason.CORES_EXHAUSTED if full and not candidate.charge.cores else None


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
        piece = tuple(one.grant(demand.word) for one in (*costly, candidate))
        pod = collapsed((*context.given.get(demand.word, ()), piece), context.inits)
        enough = quota.allows(memory, sum(grant.memory for grant in pod), factor)
        enough = enough and quota.allows(cores, sum(grant.cores for grant in pod))
        return None if enough else Reason.QUOTA

    return check


def on_the_pods_device(candidate: Candidate, context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """Whatever the pod's other containers have is this same device."""
    given = context.given.get(context.demand.word, ())
    elsewhere = any(grant.uuid != candidate.uuid for piece in given for grant in piece)
    return Reason.CUSTOM_RULE if elsewhere else None


def _named(text: str) -> list[str]:
    return [name for name in _listed(text) if name]


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
