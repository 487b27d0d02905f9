"""The one loop of scheduling: which devices of a node a container gets, or why not.

A family brings functions (``Policy``); no family has a loop of its own. All devices are asked, also when the first ones
suffice: then an answer never depends on where the loop stopped, and a refusal has a verdict on each device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.checks import CHARGED, ChargeCheck, DeviceCheck, prepared
from hami_plugin.scheduler.engine.reasons import Reason, detailed, told
from hami_plugin.scheduler.engine.requests import Demand, Request, is_part
from hami_plugin.scheduler.engine.scores import Score, neutral
from hami_plugin.scheduler.engine.selectors import Misfit, Select, first, together
from hami_plugin.scheduler.engine.states import (
    Book,
    Candidate,
    Charge,
    Context,
    DeviceState,
    Restore,
    asked,
    booked,
    restored,
)


class Verdict(NamedTuple):
    """What became of one device: the first reason against it, or None when it would serve."""

    state: DeviceState
    reason: Reason | None


Seen = tuple[tuple[DeviceState, ...], tuple[Reason | None, ...]]
"""Verdicts that nobody has read yet, as two rows."""


Detail = Callable[[DeviceState, Reason], str]
"""One word about a device that a reason against it leaves out, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """One grant for each device, or part of one, in the order of selection."""

    grants: tuple[Grant, ...]
    seen: Seen = ((), ())

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(map(Verdict, *self.seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No. ``reasons`` are counted over ``total`` devices; ``str`` is HAMi's text.

    ``detail`` is the family's word behind a reason, where a reason alone leaves something out.
    """

    demand: Demand
    total: int
    reasons: Mapping[Reason, int]
    seen: Seen = ((), ())
    detail: Detail | None = None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(map(Verdict, *self.seen))

    @property
    def detailed(self) -> str:
        """HAMi's text with the family's word in brackets behind a reason: each device counts under its own."""
        if self.detail is None:
            return str(self)
        counts: Counter[str] = Counter(self.reasons)
        for state, reason in zip(*self.seen, strict=True):
            said = self.detail(state, reason) if reason and counts[reason] else ""
            if reason and said:
                counts[reason] -= 1
                counts[detailed(reason, said)] += 1
        return told(+counts, self.total)

    def __str__(self) -> str:
        return told(self.reasons, self.total)


NOT_FOR_THIS_POD = frozenset({Reason.UNHEALTHY, Reason.CORDONED, Reason.TYPE_MISMATCH})
"""A group of devices that all have one of these reasons against them is none to the pod, as for HAMi."""

__all__ = ["Granted", "Policy", "Refused", "Verdict", "candidate", "fit", "trial", "walked"]


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
    ``detail``   one word that a reason against a device leaves out, or nothing.
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
    limited: Callable[[PodView], bool] = lambda _pod: False
    score: Score = neutral
    detail: Detail | None = None


def fit(policy: Policy, states: Sequence[DeviceState], context: Context) -> Granted | Refused:
    """Decide for one container. ``states`` stand in device order, best last (``policy.order``)."""
    context = context.among(tuple(states))
    demand, total = context.demand, len(states)
    for gate in policy.gates:
        if reason := gate(context):
            return Refused(demand=demand, total=total, reasons={reason: 1})
    seen: Seen = ((), ())
    misfit, left_behind, elsewhere = Misfit(), 0, 0
    for group in policy.group(states[::-1], context):
        eligible, (these, reasons) = walked(policy, group, context)
        seen = (seen[0] + these, seen[1] + reasons)
        if left_behind and NOT_FOR_THIS_POD.issuperset(reasons):
            continue
        elsewhere += left_behind
        chosen = policy.select(eligible, context)
        if not isinstance(chosen, Misfit):
            return Granted(grants=tuple([one.grant(demand.device_type) for one in chosen]), seen=seen)
        misfit, left_behind = chosen, len(eligible)
    counted = Counter(filter(None, seen[1])) + Counter({Reason.NUMA: elsewhere})
    if misfit.instead:  # but what the node says that it refuses stands before any choice
        whole = {Reason.WHOLE_ONLY: counted[Reason.WHOLE_ONLY]} if counted[Reason.WHOLE_ONLY] else None
        counted = Counter(whole or misfit.reasons)
    else:
        counted.update(misfit.reasons)
    return Refused(demand=demand, total=misfit.total or total, reasons=counted, seen=seen, detail=policy.detail)


def walked(policy: Policy, group: Sequence[DeviceState], context: Context) -> tuple[tuple[Candidate, ...], Seen]:
    """What could be granted of these devices, in walking order, and what became of each."""
    eligible: list[Candidate] = []
    asked: list[DeviceState] = []
    against: list[Reason | None] = []
    tried, again, most = trial(policy, context), policy.again, context.demand.count
    for state in group:
        found = tried(state, eligible)
        asked.append(state)
        if isinstance(found, Reason):
            against.append(found)
            continue
        against.append(None)
        eligible.append(found)
        for _more in range(1, most) if again(state) else ():
            found = tried(state, eligible)
            if isinstance(found, Reason):
                asked.append(state)
                against.append(found)
                break
            eligible.append(found)
    return tuple(eligible), (tuple(asked), tuple(against))


def candidate(
    policy: Policy, state: DeviceState, context: Context, eligible: Sequence[Candidate]
) -> Candidate | Reason:
    """One device with its bill, beside those that are eligible already; or the first reason against it."""
    return trial(policy, context)(state, eligible)


def trial(policy: Policy, context: Context) -> Callable[[DeviceState, Sequence[Candidate]], Candidate | Reason]:
    """``candidate`` for one device after the other: what the checks have to read first is read once."""
    serves, charged, checks = prepared(policy.serves, context), policy.charge, policy.checks
    limited = policy.limited(context.pod)

    def tried(state: DeviceState, eligible: Sequence[Candidate]) -> Candidate | Reason:
        for serve in serves:
            if reason := serve(state, context):
                return reason
        charge = charged(state, context, eligible)
        if isinstance(charge, Reason):
            return charge
        if state.whole and not limited and is_part(state.info, charge.memory, charge.cores):
            return Reason.WHOLE_ONLY
        found = Candidate(state, charge)
        for check in checks:
            if reason := check(found, context, eligible):
                return reason
        return found

    return tried
