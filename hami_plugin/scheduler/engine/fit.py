"""The one loop of scheduling: which devices of a node a container gets, or why not.

A family brings functions (``Policy``); no family has a loop of its own. All devices are asked, also when the first ones
suffice: then an answer never depends on where the loop stopped, and a refusal has a verdict on each device.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hami_plugin.model.device import NO_LINKS
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.process.concurrency import Pausing, run_without_pauses
from hami_plugin.protocol.nodes import refusal_of
from hami_plugin.scheduler.engine.devices import (
    ORDER_KEY,
    OURS,
    AnnotationLists,
    Candidate,
    Context,
    Demand,
    DeviceState,
    Given,
    Invalid,
    NodeInfo,
    Piece,
    Quota,
    Reason,
    detailed,
    is_part,
    oversized_annotation,
    summary,
)
from hami_plugin.scheduler.engine.policy import (
    EVEN,
    Detail,
    Misfit,
    Policy,
    Weights,
    consulted_annotations,
    device_scorer,
    ordered,
    prepare_checks,
    weights,
)
from hami_plugin.scheduler.engine.topology import ChoiceCache


class DeviceVerdict(NamedTuple):
    """What became of one device: the first reason against it, or None when it would serve."""

    state: DeviceState
    reason: Reason | None


Seen = tuple[tuple[DeviceState, ...], tuple[Reason | None, ...]]
"""Verdicts that nobody has read yet, as two rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """One grant for each device, or part of one, in the order of selection."""

    grants: tuple[Grant, ...]
    seen: Seen = ((), ())

    @property
    def verdicts(self) -> tuple[DeviceVerdict, ...]:
        return tuple(map(DeviceVerdict, *self.seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No. ``reasons`` are counted over ``total`` devices; ``str`` is HAMi's text.

    ``detail`` is what the family adds to a reason.
    """

    demand: Demand
    total: int
    reasons: Mapping[Reason, int]
    seen: Seen = ((), ())
    detail: Detail | None = None

    @property
    def verdicts(self) -> tuple[DeviceVerdict, ...]:
        return tuple(map(DeviceVerdict, *self.seen))

    @property
    def detailed(self) -> str:
        """HAMi's text with the family's detail in brackets behind a reason: each device counts under its own."""
        if self.detail is None:
            return str(self)
        counts: Counter[str] = Counter(self.reasons)
        for state, reason in zip(*self.seen, strict=True):
            detail = self.detail(state, reason) if reason and counts[reason] else ""
            if reason and detail:
                counts[reason] -= 1
                counts[detailed(reason, detail)] += 1
        return summary(+counts, self.total)

    def __str__(self) -> str:
        return summary(self.reasons, self.total)


NOT_FOR_THIS_POD = frozenset({Reason.UNHEALTHY, Reason.CORDONED, Reason.TYPE_MISMATCH})
"""A group of devices that all have one of these reasons against them is none to the pod, as for HAMi."""


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
        eligible, (these, reasons) = collect_candidates(policy, group, context)
        seen = (seen[0] + these, seen[1] + reasons)
        if left_behind and NOT_FOR_THIS_POD.issuperset(reasons):
            continue
        elsewhere += left_behind
        chosen = policy.select(eligible, context)
        if not isinstance(chosen, Misfit):
            return Granted(grants=tuple([one.grant(demand.device_type) for one in chosen]), seen=seen)
        misfit, left_behind = chosen, len(eligible)
    counted = Counter(filter(None, seen[1])) + Counter({Reason.NUMA: elsewhere})
    if misfit.instead:  # but what the node refuses by itself comes before any choice
        whole = {Reason.WHOLE_ONLY: counted[Reason.WHOLE_ONLY]} if counted[Reason.WHOLE_ONLY] else None
        counted = Counter(whole or misfit.reasons)
    else:
        counted.update(misfit.reasons)
    return Refused(demand=demand, total=misfit.total or total, reasons=counted, seen=seen, detail=policy.detail)


def collect_candidates(
    policy: Policy, group: Sequence[DeviceState], context: Context
) -> tuple[tuple[Candidate, ...], Seen]:
    """What could be granted of these devices, in walking order, and what became of each."""
    eligible: list[Candidate] = []
    asked: list[DeviceState] = []
    against: list[Reason | None] = []
    tried, again, most = device_checker(policy, context), policy.again, context.demand.count
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


def check_device(
    policy: Policy, state: DeviceState, context: Context, eligible: Sequence[Candidate]
) -> Candidate | Reason:
    """One device with its bill, beside those that are eligible already; or the first reason against it."""
    return device_checker(policy, context)(state, eligible)


def device_checker(
    policy: Policy, context: Context
) -> Callable[[DeviceState, Sequence[Candidate]], Candidate | Reason]:
    """``check_device`` for one device after the other: what the checks have to read first is read once."""
    serves, charged, checks = (
        prepare_checks(policy.serves, context),
        policy.charge,
        prepare_checks(policy.checks, context),
    )
    limited, count = policy.limited(context.pod), context.demand.count

    def tried(state: DeviceState, eligible: Sequence[Candidate]) -> Candidate | Reason:
        for serve in serves:
            if reason := serve(state, context):
                return reason
        charge = charged(state, context, eligible)
        if isinstance(charge, Reason):
            return charge
        if 0 < state.whole_from <= count and not limited and is_part(state.info, charge.memory, charge.cores):
            return Reason.WHOLE_ONLY
        found = Candidate(state, charge)
        for check in checks:
            if reason := check(found, context, eligible):
                return reason
        return found

    return tried


Policies = Mapping[str, Policy]
"""The families that a scheduler knows, by device type."""

Demands = tuple[Mapping[str, Demand], ...]
"""What each container of a pod asks for, by device type; init containers first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOptions:
    """What a decision depends on beside the pod and the node. ``order`` is the cluster's device order.

    On ``solved`` only depends how long it takes.
    """

    order: str = "spread"
    quota: Quota = field(default_factory=Quota)
    choices: ChoiceCache | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One container's part of one family: what the policy was given, and its answer."""

    container: ContainerView
    context: Context
    states: tuple[DeviceState, ...]
    outcome: Granted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFit:
    """The pod fits. ``given`` has one piece for each container; ``after`` is what is taken then."""

    node_info: NodeInfo
    given: Given
    steps: tuple[Step, ...]
    after: Mapping[str, tuple[DeviceState, ...]]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    """The pod does not fit. The last step is the one that failed, if the rules were asked at all."""

    node_info: NodeInfo
    why: str
    steps: tuple[Step, ...] = ()


@dataclass(kw_only=True, slots=True)
class CycleState:
    """What a pod has of one node so far: fit and reserve for each family of a container, then close the container."""

    pod: PodView
    policies: Policies
    node_info: NodeInfo
    weights: Weights
    options: CycleOptions
    lists: AnnotationLists | None = None
    steps: list[Step] = field(default_factory=list)
    _running: dict[str, tuple[DeviceState, ...]] = field(init=False)
    _now: dict[str, tuple[DeviceState, ...]] = field(init=False)
    _peaks: list[Mapping[str, tuple[DeviceState, ...]]] = field(default_factory=list)
    _pieces: list[dict[str, Piece]] = field(default_factory=list)
    _open: dict[str, Piece] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._running = {device_type: pool.states for device_type, pool in self.node_info.pools.items()}
        self._now = dict(self._running)

    def fit(
        self, container: ContainerView, demand: Demand, *, among: Collection[str] | None = None
    ) -> Granted | Refused:
        """Which devices a container would get of one family; ``among`` these alone, if they are named."""
        policy, states = self.policies[demand.device_type], self._now.get(demand.device_type, ())
        if among is not None:
            states = tuple([state for state in states if state.info.id in among])
        context = self._context(demand)
        standing = in_order(policy, states, context, device_scorer([demand], self.weights))
        outcome = fit(policy, standing, context)
        if demand.count > len(states) and not any(map(policy.again, states)):
            reasons = {Reason.TOO_FEW_ON_NODE: 1}
            outcome = Refused(demand=demand, total=len(states), reasons=reasons, seen=outcome.seen)
        self.steps.append(Step(container=container, context=context, states=standing, outcome=outcome))
        return outcome

    def reserve(self, device_type: str, grants: Sequence[Grant]) -> str:
        """Book what the open container gets of one family. The reason why that cannot be, or nothing."""
        after = {state.info.id: state for state in self._now[device_type]}
        recorded: list[Grant] = []
        for grant in grants:
            booking = self.policies[device_type].book(after[grant.uuid], grant, self.pod)
            if isinstance(booking, Reason):
                return summary({booking: 1}, len(after))
            after[grant.uuid], one = booking
            recorded.append(one)
        self._now[device_type] = tuple(after.values())
        self._open[device_type] = tuple(recorded)
        return ""

    def close(self, container: ContainerView) -> None:
        """Every container once, in order, also those that ask for nothing."""
        self._pieces.append(self._open)
        if container.alone:
            self._peaks.append(self._now)
        else:
            self._running = self._now
        self._now, self._open = dict(self._running), {}

    @property
    def given(self) -> Given:
        """One piece for each closed container, by the device types of which the pod has anything."""
        granted = [
            device_type for device_type in self.policies if any(device_type in pieces for pieces in self._pieces)
        ]
        return {device_type: tuple(pieces.get(device_type, ()) for pieces in self._pieces) for device_type in granted}

    @property
    def after(self) -> Mapping[str, tuple[DeviceState, ...]]:
        """Per device the larger of what runs together and of each plain init container's part."""
        final = dict(self._running)
        for peak in self._peaks:
            final |= {
                device_type: tuple(map(_larger, final[device_type], states)) for device_type, states in peak.items()
            }
        return final

    def _context(self, demand: Demand) -> Context:
        """Of what the pod has so far, the rules see what will run beside the container, after an empty piece for each
        plain init container: so no rule takes a running container for one of those.
        """
        pool = self.node_info.pools.get(demand.device_type)
        containers, closed = self.pod.containers, self._pieces
        inits = ((),) * sum([container.alone for container in containers])
        running = [pieces for container, pieces in zip(containers, closed, strict=False) if not container.alone]
        return Context(
            demand=demand,
            pod=self.pod,
            node=self.node_info.node,
            links=pool.links if pool else NO_LINKS,
            given={
                device_type: (*inits, *[pieces.get(device_type, ()) for pieces in running])
                for device_type in self.policies
            },
            quota=self.options.quota,
            order=self.options.order,
            choices=self.options.choices,
            listings=self.lists,
        )


def refusal(outcome: Refused, node: NodeView) -> str:
    """HAMi's text, with the family's details. That a node has too few devices comes without numbers.

    What the node itself refuses follows.
    """
    text = Reason.TOO_FEW_ON_NODE if Reason.TOO_FEW_ON_NODE in outcome.reasons else outcome.detailed
    refuses = refusal_of(node.annotations, outcome.demand.device_type)
    against = {*outcome.reasons, *outcome.seen[1]}  # some families give one reason in place of their devices'
    notes = [OURS[reason] for reason in OURS if reason in against]
    if refuses and (refuses.what == "all" or Reason.WHOLE_ONLY in against):
        notes.append(str(refuses))
    return f"{text} ({'; '.join(notes)})" if notes else text


def in_order(
    policy: Policy, states: Sequence[DeviceState], context: Context, full: Callable[[DeviceState], float]
) -> tuple[DeviceState, ...]:
    """The devices as ``fit`` takes them, best last. Where only devices of a group serve together, groups stay whole."""
    groups = tuple(policy.group(states[::-1], context))
    return ordered(states, context.orders, full, numa_first=len(groups) > 1)


def _larger(one: DeviceState, other: DeviceState) -> DeviceState:
    """What must be kept free for both, when they do not run at the same time."""
    return replace(
        one,
        slots=max(one.slots, other.slots),
        memory=max(one.memory, other.memory),
        cores=max(one.cores, other.cores),
        slices=one.slices if len(one.slices) >= len(other.slices) else other.slices,
    )


def pod_demands(pod: PodView, policies: Policies) -> Demands | Invalid:
    """What the pod's containers ask for. One amount that means nothing makes the whole pod invalid."""
    return run_without_pauses(pod_demands_pausing(pod, policies))


def pod_demands_pausing(pod: PodView, policies: Policies) -> Pausing[Demands | Invalid]:
    """The same, with a pause after each container."""
    found: list[Mapping[str, Demand]] = []
    for container in pod.containers:
        answers = {device_type: policy.request(container) for device_type, policy in policies.items()}
        invalid = next((one for one in answers.values() if isinstance(one, Invalid)), None)
        if invalid:
            return invalid
        found.append({device_type: one for device_type, one in answers.items() if isinstance(one, Demand)})
        yield
    return tuple(found)


def requested_policies(wanted: Demands, policies: Policies) -> Policies:
    """The families of which a pod asks for something."""
    types = {device_type for one in wanted for device_type in one}
    return {device_type: policy for device_type, policy in policies.items() if device_type in types}


def overlong_annotation(pod: PodView, policies: Policies) -> Invalid | None:
    """An annotation by which the pod selects devices of these families, and which is too long to be read."""
    keys = [key for policy in policies.values() for key in consulted_annotations(policy.serves)]
    return oversized_annotation(pod.annotations, [ORDER_KEY, *keys]) if policies else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What a pod asks for, read once for all nodes. ``policies`` are those of the families that it asks."""

    pod: PodView
    policies: Policies
    demands: Demands
    weights: Weights
    lists: AnnotationLists


def pod_request(pod: PodView, policies: Policies, wanted: Demands | Invalid | None = None) -> PodRequest | Invalid:
    """Read the pod. ``wanted`` are its demands, where they are known already."""
    wanted = pod_demands(pod, policies) if wanted is None else wanted
    weighing = weights(pod.annotations)
    if isinstance(wanted, Invalid):
        return wanted
    if isinstance(weighing, Invalid):
        return weighing
    asked = requested_policies(wanted, policies)
    return overlong_annotation(pod, asked) or PodRequest(
        pod=pod, policies=asked, demands=wanted, weights=weighing, lists=AnnotationLists(pod.annotations)
    )


def fit_pod(
    pod: PodView, policies: Policies, node_info: NodeInfo, options: CycleOptions | None = None
) -> PodFit | Unschedulable:
    """Which devices of the node each container gets, or the first reason why not. A pod that asks for nothing fits."""
    request = pod_request(pod, policies)
    if isinstance(request, Invalid):
        return Unschedulable(node_info=node_info, why=str(request))
    return run_without_pauses(fit_pod_pausing(request, node_info, options or CycleOptions()))


def fit_pod_pausing(request: PodRequest, node_info: NodeInfo, options: CycleOptions) -> Pausing[PodFit | Unschedulable]:
    """``fit_pod`` for a pod that was read, with a pause after each container that asks."""
    state = CycleState(
        pod=request.pod,
        policies=request.policies,
        node_info=node_info,
        weights=request.weights,
        options=options,
        lists=request.lists,
    )
    for container, wanted in zip(request.pod.containers, request.demands, strict=True):
        for device_type, demand in wanted.items():
            outcome = state.fit(container, demand)
            yield
            if isinstance(outcome, Refused):
                why = refusal(outcome, node_info.node)
            else:
                why = state.reserve(device_type, outcome.grants)
            if why:
                return Unschedulable(node_info=node_info, why=why, steps=tuple(state.steps))
        state.close(container)
    return PodFit(node_info=node_info, given=state.given, steps=tuple(state.steps), after=state.after)


def refit_pod(
    pod: PodView, policies: Policies, node_info: NodeInfo, has: Mapping[str, Sequence[Piece]], order: str
) -> str:
    """Why the pod cannot have on this node what it was given; empty when it can. ``has`` are the pieces that are not
    empty, by device type: the N-th is the N-th asking container's.

    Each container is tried with its own devices alone. The namespace's quota is no matter any more.
    """
    wanted = pod_demands(pod, policies)
    if isinstance(wanted, Invalid):
        return str(wanted)
    left = {device_type: deque(pieces) for device_type, pieces in has.items()}
    state = CycleState(
        pod=pod,
        policies=requested_policies(wanted, policies),
        node_info=node_info,
        weights=EVEN,
        options=CycleOptions(order=order),
        lists=AnnotationLists(pod.annotations),
    )
    for container, demands_of in zip(pod.containers, wanted, strict=True):
        for device_type, demand in demands_of.items():
            pieces = left.get(device_type)
            if not pieces:
                return f"the decision has no {device_type} devices for container {container.name}"
            names = {grant.uuid for grant in pieces.popleft()}
            outcome = state.fit(container, demand, among=names)
            if isinstance(outcome, Refused):
                return f"{', '.join(sorted(names))}: {refusal(outcome, node_info.node)}"
            if conflict := state.reserve(device_type, outcome.grants):
                return f"{', '.join(sorted(names))}: {conflict}"
        state.close(container)
    return ""
