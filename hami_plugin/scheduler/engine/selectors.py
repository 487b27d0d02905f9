"""Given devices that all fit, which ones to grant."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hami_plugin.scheduler.engine.devices import Candidate, Context, DeviceState
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.topology.choice import best_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The eligible devices do not make an answer. ``instead``: the devices' own reasons are not told.

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

    ``start_step`` says of a count at which indices a run may start: 1 anywhere, n at multiples of n, None nowhere.
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
    return "topology-aware" in context.words


GO_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""What Go reads as true."""

Group = Callable[[Sequence[DeviceState], Context], Iterable[Sequence[DeviceState]]]


def together(states: Sequence[DeviceState], _context: Context) -> Iterable[Sequence[DeviceState]]:
    """All of them."""
    return (states,)


def by_numa_if(annotation: str) -> Group:
    """One group for each NUMA node if the pod's annotation is true; the node of the first device comes first."""

    def group(states: Sequence[DeviceState], context: Context) -> Iterable[Sequence[DeviceState]]:
        if context.pod.annotations.get(annotation) not in GO_TRUE:
            return (states,)
        nodes = dict.fromkeys(state.info.numa for state in states)
        return tuple([state for state in states if state.info.numa == numa] for numa in nodes)

    return group
