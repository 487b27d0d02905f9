"""How a family answers the scheduler: ``Policy``, and the parts that one is built of.

First may a device serve, then which of those that may are granted. What a node is then worth is its score: spread takes
the lowest, every other node policy the highest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.scheduler.engine.devices import (
    WHOLE,
    Book,
    Candidate,
    Charge,
    Context,
    Demand,
    DeviceState,
    Invalid,
    Piece,
    Reason,
    Request,
    Restore,
    abbreviate,
    book_grant,
    charge_request,
    effective_grants,
    names_type,
    restore_grant,
)
from hami_plugin.scheduler.engine.topology import best_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a family would give a pod on a node. ``before`` are its devices without it; ``order`` the node policy."""

    node: NodeView
    pod: PodView
    pieces: Sequence[Piece]
    before: Sequence[DeviceState]
    order: str = "binpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A score of which more is better under every node policy. It outweighs how full the node is."""

    value: float


Score = Callable[[Decision], float | Ranking]


def neutral(_decision: Decision) -> float:
    """The family does not care which node it is."""
    return 0.0


def fullness(states: Sequence[DeviceState]) -> float:
    """How much of a node's slots, cores and memory is taken, 10 for all of each; 0 when it has none of one of them."""
    counts = devcores = devmem = slots = cores = memory = 0
    for state in states:
        info = state.info
        counts, devcores, devmem = counts + info.count, devcores + info.devcore, devmem + info.devmem
        slots, cores, memory = slots + state.slots, cores + state.cores, memory + state.memory
    return 10.0 * (slots / counts + cores / devcores + memory / devmem) if counts and devcores and devmem else 0.0


def share_together(pieces: Sequence[Piece], key: Callable[[str], object | None]) -> float:
    """The largest part of each container's devices that is in one group, from 0 to 1, added up."""
    worth = 0.0
    for piece in filter(None, pieces):
        groups = [key(grant.uuid) for grant in piece]
        worth += max((groups.count(group) for group in groups if group is not None), default=0) / len(piece)
    return worth


WEIGHTS_KEY = "hami.io/device-scoring-weights"
_WEIGHT = re.compile(r"[0-9]{1,9}")

Key = Callable[[DeviceState], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


EVEN = Weights()


def weights(annotations: Mapping[str, str]) -> Weights | Invalid:
    """The pod's weights: all three as whole numbers of up to nine digits, one of them above 0; even ones when it names
    none.
    """
    text = annotations.get(WEIGHTS_KEY)
    if text is None:
        return EVEN
    fields = [tuple(part.strip() for part in item.split("=", 1)) for item in text.split(",", 3)]
    given = {field[0]: field[1] for field in fields if len(field) == 2 and _WEIGHT.fullmatch(field[1])}
    values = {name: int(number) for name, number in given.items()}
    if len(fields) != 3 or set(values) != {"slot", "core", "memory"} or not any(values.values()):
        why = "is not as slot=1,core=1,memory=3: whole numbers from 0 to 999999999, one of them above 0"
        return Invalid(resource=WEIGHTS_KEY, text=abbreviate(text), why=why)
    return Weights(**values)


def score(state: DeviceState, demands: Sequence[Demand], weighing: Weights = EVEN) -> float:
    """How full the device would be, 10 for each dimension with weight 1; 0 for a device without slots.

    Memory or cores do not count where the device has none.
    """
    return device_scorer(demands, weighing)(state)


def device_scorer(demands: Sequence[Demand], weighing: Weights = EVEN) -> Callable[[DeviceState], float]:
    """``score`` for one device after the other: the demands are added up once."""
    slots, cores = len(demands), sum(demand.cores for demand in demands)
    memory = sum(demand.memory or 0 for demand in demands if not demand.percent)
    percents = [demand.percent for demand in demands if demand.percent]
    by_slots, by_cores, by_memory = 10 * weighing.slot, 10 * weighing.core, 10 * weighing.memory

    def scored(state: DeviceState) -> float:
        info = state.info
        if not info.count:
            return 0.0
        full = by_slots * (state.slots + slots) / info.count
        if info.devcore:
            full += by_cores * (state.cores + cores) / info.devcore
        if info.devmem:
            more = memory + sum(info.devmem * percent // 100 for percent in percents) if percents else memory
            full += by_memory * (state.memory + more) / info.devmem
        return round(full, 9)  # so that devices that are equally full are equal in spite of binary fractions

    return scored


def ordered(
    states: Sequence[DeviceState],
    orders: Sequence[str],
    full: Callable[[DeviceState], float],
    *,
    numa_first: bool = False,
) -> tuple[DeviceState, ...]:
    """The devices, best last; ``full`` scores how full each is.

    ``binpack`` fills the fullest, ``spread`` (and a single order that is none of these) the emptiest, ``mutex`` takes
    those with the fewest slots in use, ``numa`` keeps NUMA nodes together; ``numa_first`` does so before the orders.
    Several orders decide one after the other, then the index; after a single order equal devices keep their order.
    """
    keys: dict[str, Callable[[DeviceState], float]] = {
        "numa": lambda state: state.info.numa,
        "binpack": full,
        "spread": lambda state: -full(state),
    }
    if len(orders) == 1 and orders[0] != "numa":
        return tuple(sorted(states, key=_single(orders[0], full, numa_first=numa_first)))
    known = [order for order in orders if order in keys] or ["spread"]
    chain = [keys[order] for order in dict.fromkeys(["numa", *known] if numa_first else known)]
    return tuple(sorted(states, key=lambda state: (*(key(state) for key in chain), state.index)))


def _single(order: str, full: Callable[[DeviceState], float], *, numa_first: bool) -> Key:
    match order, numa_first:
        case "mutex", _:
            return lambda state: (-state.slots, state.info.numa)
        case "binpack", False:
            return lambda state: (full(state), state.info.numa)
        case "binpack", True:
            return lambda state: (-state.info.numa, full(state))
        case _, False:
            return lambda state: (-full(state), state.info.numa)
    return lambda state: (state.info.numa, -full(state))


DeviceCheck = Callable[[DeviceState, Context], Reason | None]
ChargeCheck = Callable[[Candidate, Context, Sequence[Candidate]], Reason | None]


Check = TypeVar("Check", bound=Callable[..., Reason | None])


class Selects(Enum):
    """What the names in two annotations of a pod are: the first lists what may serve, the second what may not."""

    TYPE = "parts of type names"
    UUID = "UUIDs"


@dataclass(frozen=True)
class ReadFirst(Generic[Check]):
    """A check that reads the pod and the node before it sees a device: once for all devices of a container.

    ``read`` gives what the devices are then asked, or None where it would be against none of them. ``keys`` are the
    pod's annotations in which it looks for names, and ``selects`` says which, if it does nothing else.
    """

    read: Callable[[Context], Check | None]
    keys: tuple[str, ...] = ()
    selects: Selects | None = None

    def __call__(self, about: Any, context: Context, *beside: Any) -> Reason | None:
        check = self.read(context)
        return check(about, context, *beside) if check else None


def prepare_checks(checks: Iterable[Check], context: Context) -> tuple[Check, ...]:
    """The same checks for many devices: what has to be read is read, and those that are against none are left out."""
    asked = [check.read(context) if isinstance(check, ReadFirst) else check for check in checks]
    return tuple([check for check in asked if check])


def consulted_annotations(checks: Iterable[DeviceCheck]) -> Iterable[str]:
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
            return (wanted is None or names_type(wanted, kind)) and not names_type(unwanted or (), kind)

        def check(state: DeviceState, _context: Context) -> Reason | None:
            kind = state.info.type
            allowed = listings.verdict((use, avoid, kind), lambda: judged(kind.lower()))
            return None if allowed else Reason.TYPE_MISMATCH

        return check

    return ReadFirst(read, keys=(use, avoid), selects=Selects.TYPE)


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

    return ReadFirst(read, keys=(use, avoid), selects=Selects.UUID)


def free_slot(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.slots < state.info.count else Reason.NO_SLOT


def idle_device(state: DeviceState, _context: Context) -> Reason | None:
    return Reason.EXCLUSIVE if state.slots > 0 else None


alone_if_mutex = ReadFirst(lambda context: idle_device if "mutex" in context.orders else None)
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
        others = context.demand.count - 1
        costly = sorted(eligible, key=lambda other: (other.charge.memory, other.charge.cores), reverse=True)[:others]
        piece = tuple(one.grant(demand.device_type) for one in (*costly, candidate))
        pod = effective_grants((*context.given.get(demand.device_type, ()), piece), context.inits)
        enough = quota.allows(memory, sum(grant.memory for grant in pod), factor)
        enough = enough and quota.allows(cores, sum(grant.cores for grant in pod))
        return None if enough else Reason.QUOTA

    return ReadFirst(lambda context: check if context.quota.limits else None)


def on_the_pods_device(candidate: Candidate, context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """Whatever the pod's other containers have is this same device."""
    given = context.given.get(context.demand.device_type, ())
    elsewhere = any(grant.uuid != candidate.uuid for piece in given for grant in piece)
    return Reason.CUSTOM_RULE if elsewhere else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The eligible devices do not make an answer. ``instead``: the devices' own reasons are left out.

    ``total`` is what the counts are out of, where that is not the number of devices.
    """

    reasons: Mapping[Reason, int] = field(default_factory=dict)
    instead: bool = False
    total: int | None = None


Selection = Sequence[Candidate] | Misfit
Select = Callable[[Sequence[Candidate], Context], Selection]
Choose = Callable[[Sequence[Candidate], Context], Sequence[Candidate]]


def enough(choose: Choose) -> Select:
    """A selector that is asked only when there are more than needed. Exactly enough are taken as they stand."""

    def select(eligible: Sequence[Candidate], context: Context) -> Selection:
        count = context.demand.count
        if len(eligible) < count:
            return Misfit(reasons={Reason.TOO_FEW: len(eligible)} if eligible else {})
        return eligible if len(eligible) == count else choose(eligible, context)

    return select


@enough
def first(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """The first ones in walking order."""
    return eligible[: context.demand.count]


@enough
def linked_choice(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """One: that whose links to the others are worth least. Several: those that are linked best with each other.

    Of equals the first ones in walking order; where devices are taken whole, first those that leave the best-linked
    rest. Shares of one device have no link with each other.
    """
    places = sorted(range(len(eligible)), key=lambda place: eligible[place].state.info.index)
    pairs = context.links.scores([eligible[place].uuid for place in places])
    order = sorted(range(len(places)), key=places.__getitem__)  # walking order, by place among the indices
    count = context.demand.count
    rest = count == 1 or all(map(_whole, eligible))
    return [eligible[places[one]] for one in best_places(order, count, pairs, rest=rest, choices=context.choices)]


def _whole(candidate: Candidate) -> bool:
    """Nothing of the device is left for others."""
    info, charge = candidate.state.info, candidate.charge
    return info.count == 1 or 0 < info.devmem <= charge.memory or 0 < info.devcore <= charge.cores


def by_group(key: Callable[[Candidate], Hashable | None]) -> Select:
    """Whole groups first: the largest, then the next. Candidates without a key come last."""

    @enough
    def same_group(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
        groups: dict[Hashable, list[Candidate]] = {}
        for candidate in eligible:
            if (name := key(candidate)) is not None:
                groups.setdefault(name, []).append(candidate)
        ordered = [one for group in sorted(groups.values(), key=len, reverse=True) for one in group]
        rest = [candidate for candidate in eligible if key(candidate) is None]
        return (*ordered, *rest)[: context.demand.count]

    return same_group


def whole_modules(size: int) -> Select:
    """Devices that are soldered together (``size`` neighbours by index) are granted together or not at all."""

    def select(eligible: Sequence[Candidate], context: Context) -> Selection:
        modules: dict[int, list[Candidate]] = {}
        for candidate in eligible:
            modules.setdefault(candidate.state.index // size, []).append(candidate)
        complete = [one for module in modules.values() if len(module) == size for one in module]
        count = context.demand.count
        whole = complete[: -(-count // size) * size]
        return whole if len(whole) == count else Misfit(reasons={Reason.TOO_FEW: len(whole)}, total=count)

    return select


def consecutive(start_step: Callable[[int], int | None], reason: Reason = Reason.NUMA) -> Select:
    """Neighbours by index: the first run of ``count`` eligible devices.

    ``start_step`` gives for a count at which indices a run may start: 1 anywhere, n at multiples of n, None nowhere.
    """

    def select(eligible: Sequence[Candidate], context: Context) -> Selection:
        count = context.demand.count
        free = {candidate.state.index: candidate for candidate in eligible}
        step = start_step(count)
        for start in sorted(free) if step else ():
            run = [free[index] for index in range(start, start + count) if index in free]
            if start % (step or 1) == 0 and len(run) == count:
                return run
        return Misfit(reasons={reason: 1}, instead=True)

    return select


def when(condition: Callable[[Context], bool], then: Select, otherwise: Select = first) -> Select:
    return lambda eligible, context: (then if condition(context) else otherwise)(eligible, context)


def topology_aware(context: Context) -> bool:
    """The device order in force contains ``topology-aware``."""
    return "topology-aware" in context.orders


GO_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""What Go reads as true."""

Group = Callable[[Sequence[DeviceState], Context], Iterable[Sequence[DeviceState]]]


def together(states: Sequence[DeviceState], _context: Context) -> Iterable[Sequence[DeviceState]]:
    """All of them."""
    return (states,)


@dataclass(frozen=True, slots=True)
class ByNumaIf:
    """One group for each NUMA node if the pod's annotation is true; the node of the first device comes first."""

    annotation: str

    def wanted(self, pod: PodView) -> bool:
        """Whether the pod's devices have to be of one NUMA node."""
        return pod.annotations.get(self.annotation) in GO_TRUE

    def __call__(self, states: Sequence[DeviceState], context: Context) -> Iterable[Sequence[DeviceState]]:
        if not self.wanted(context.pod):
            return (states,)
        nodes = dict.fromkeys(state.info.numa for state in states)
        return tuple([state for state in states if state.info.numa == numa] for numa in nodes)


Detail = Callable[[DeviceState, Reason], str]
"""What a reason against a device leaves out about it, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a family answers, as functions. The defaults are HAMi's usual rule: the first devices that fit.

    ``request``  what does a container ask for?
    ``gates``    may this node serve the pod at all?
    ``group``    which devices may be granted together? Given and yielded in walking order, last device first.
    ``serves``   may this device serve the pod? The first reason counts.
    ``charge``   what is the device billed? It sees what is eligible so far.
    ``checks``   is that free? The first reason counts. They too see what is eligible so far.
    ``again``    may one container have another share of this device?
    ``select``   which of the eligible ones, in walking order? It also decides what too few of them means.
    ``book``     what a grant takes of a device.
    ``restore``  what a pod that has a share already takes of a device.
    ``limited``  are the pod's parts limited by means of their own, also where the node hands out whole devices only?
    ``score``    what the node is worth for the decision, beside how full it is.
    ``detail``   what a reason against a device leaves out, or nothing.
    """

    request: Request
    gates: tuple[Callable[[Context], Reason | None], ...] = ()
    group: Callable[[Sequence[DeviceState], Context], Iterable[Sequence[DeviceState]]] = together
    serves: tuple[DeviceCheck, ...]
    charge: Callable[[DeviceState, Context, Sequence[Candidate]], Charge | Reason] = charge_request
    checks: tuple[ChargeCheck, ...] = CHARGED
    again: Callable[[DeviceState], bool] = lambda _state: False
    select: Select = first
    book: Book = book_grant
    restore: Restore = restore_grant
    limited: Callable[[PodView], bool] = lambda _pod: False
    score: Score = neutral
    detail: Detail | None = None
