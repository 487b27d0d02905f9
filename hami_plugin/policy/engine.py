"""The one loop of scheduling: which devices of a node a container gets, or why not.

A family brings functions (``Policy``); no family has a loop of its own. All devices are asked, also when the first ones
suffice: then an answer never depends on where the loop stopped, and a refusal has a verdict on each device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.placement import Grant
from hami_plugin.policy.booking import Book, Restore, booked, restored
from hami_plugin.policy.charges import asked
from hami_plugin.policy.checks import CHARGED, ChargeCheck, DeviceCheck
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.groups import together
from hami_plugin.policy.reasons import Reason, told
from hami_plugin.policy.requests import Request
from hami_plugin.policy.scores import Score, neutral
from hami_plugin.policy.selectors import Misfit, Select, first
from hami_plugin.policy.states import Candidate, Charge, Context, DeviceState


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
    ``score``    what the node is worth for the decision, beside how full it is.
    """

    request: Request
    gates: tuple[Callable[[Context], Reason | None], ...] = ()
    group: Callable[[Sequence[DeviceState], Context], Iterable[Sequence[DeviceState]]] = together
    serves: tuple[DeviceCheck, ...]
    charge: Callable[[DeviceState, Context, Sequence[Candidate]], Charge | Reason] = asked
    checks: tuple[ChargeCheck, ...] = CHARGED
    again: Callable[[DeviceState], bool] = lambda _state: False
    select: Select = first
    book: Book = booked
    restore: Restore = restored
    score: Score = neutral


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one device: the first reason against it, or None when it would serve."""

    state: DeviceState
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """One grant for each device, or part of one, in the order of selection."""

    grants: tuple[Grant, ...]
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No. ``reasons`` are counted over ``total`` devices; ``str`` is HAMi's text."""

    demand: Demand
    total: int
    reasons: Mapping[Reason, int]
    verdicts: tuple[Verdict, ...] = field(default=())

    def __str__(self) -> str:
        return told(self.reasons, self.total)


def fit(policy: Policy, states: Sequence[DeviceState], context: Context) -> Granted | Refused:
    """Decide for one container. ``states`` stand in device order, best last (``policy.order``)."""
    context = replace(context, states=tuple(states))
    demand, total = context.demand, len(states)
    for gate in policy.gates:
        if reason := gate(context):
            return Refused(demand=demand, total=total, reasons={reason: 1})
    verdicts: list[Verdict] = []
    elsewhere: Counter[Reason] = Counter()
    misfit, left_behind = Misfit(), 0
    for group in policy.group(states[::-1], context):
        elsewhere[Reason.NUMA] += left_behind
        eligible, seen = walked(policy, group, context)
        verdicts += seen
        chosen = policy.select(eligible, context)
        if not isinstance(chosen, Misfit):
            grants = tuple(one.grant(demand.word) for one in chosen)
            return Granted(grants=grants, verdicts=tuple(verdicts))
        misfit, left_behind = chosen, len(eligible)
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason) + elsewhere
    if misfit.instead:
        reasons.clear()
    reasons.update(misfit.reasons)
    return Refused(demand=demand, total=misfit.total or total, reasons=reasons, verdicts=tuple(verdicts))


def walked(
    policy: Policy, group: Sequence[DeviceState], context: Context
) -> tuple[tuple[Candidate, ...], list[Verdict]]:
    """What could be granted of these devices, in walking order, and what became of each."""
    eligible: list[Candidate] = []
    verdicts: list[Verdict] = []
    for state in group:
        most = context.demand.count if policy.again(state) else 1
        for share in range(most):
            found = candidate(policy, state, context, eligible)
            if not isinstance(found, Candidate):
                verdicts.append(Verdict(state=state, reason=found))
                break
            eligible.append(found)
            if not share:
                verdicts.append(Verdict(state=state, reason=None))
    return tuple(eligible), verdicts


def candidate(
    policy: Policy, state: DeviceState, context: Context, eligible: Sequence[Candidate]
) -> Candidate | Reason:
    """One device with its bill, beside those that are eligible already; or the first reason against it."""
    for serves in policy.serves:
        if reason := serves(state, context):
            return reason
    charge = policy.charge(state, context, eligible)
    if isinstance(charge, Reason):
        return charge
    found = Candidate(state=state, charge=charge)
    for check in policy.checks:
        if reason := check(found, context, eligible):
            return reason
    return found
