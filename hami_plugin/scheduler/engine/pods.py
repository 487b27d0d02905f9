"""A whole pod on one node: which devices each of its containers gets, or why it gets none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.links import NO_LINKS, Links
from hami_plugin.model.pausing import Pausing, at_once
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.register import refused
from hami_plugin.scheduler.engine.checks import consulted
from hami_plugin.scheduler.engine.fit import Granted, Policy, Refused, fit
from hami_plugin.scheduler.engine.reasons import OURS, Reason, told
from hami_plugin.scheduler.engine.requests import Demand, Invalid
from hami_plugin.scheduler.engine.scores import EVEN, Weights, ordered, scoring, weights
from hami_plugin.scheduler.engine.states import (
    ORDER_KEY,
    Context,
    DeviceState,
    Given,
    Listings,
    Piece,
    Quota,
    oversized,
)
from hami_plugin.scheduler.engine.topology.choice import Solved

Rules = Mapping[str, Policy]
"""The families that a scheduler knows, by word."""

Demands = tuple[Mapping[str, Demand], ...]
"""What each container of a pod asks for, by family word; init containers first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a node has of one family: the devices with what is taken of them, as registered, and their links."""

    states: tuple[DeviceState, ...]
    links: Links = NO_LINKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node, and what it has by family word.

    ``kept`` is how many ids of healthy devices the kubelet keeps for pods, by resource, where these may be more than
    the devices tell.
    """

    node: NodeView
    stocks: Mapping[str, Stock]
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """All devices of all families."""
        return tuple(state for stock in self.stocks.values() for state in stock.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a decision depends on beside the pod and the node. ``order`` is the cluster's device order.

    On ``solved`` only depends how long it takes.
    """

    order: str = "spread"
    quota: Quota = field(default_factory=Quota)
    solved: Solved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One container's part of one family: what the rules were told, and what they said."""

    container: ContainerView
    context: Context
    states: tuple[DeviceState, ...]
    outcome: Granted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The pod fits. ``given`` has one piece for each container; ``after`` is what is taken then."""

    site: Site
    given: Given
    steps: tuple[Step, ...]
    after: Mapping[str, tuple[DeviceState, ...]]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """The pod does not fit. The last step is the one that failed, if the rules were asked at all."""

    site: Site
    why: str
    steps: tuple[Step, ...] = ()


@dataclass(kw_only=True, slots=True)
class Walk:
    """One pod's way over one node: ask and take for each family of a container, then close the container."""

    pod: PodView
    rules: Rules
    site: Site
    weighing: Weights
    circumstances: Circumstances
    listings: Listings | None = None
    steps: list[Step] = field(default_factory=list)
    _running: dict[str, tuple[DeviceState, ...]] = field(init=False)
    _now: dict[str, tuple[DeviceState, ...]] = field(init=False)
    _peaks: list[Mapping[str, tuple[DeviceState, ...]]] = field(default_factory=list)
    _pieces: list[dict[str, Piece]] = field(default_factory=list)
    _open: dict[str, Piece] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._running = {device_type: stock.states for device_type, stock in self.site.stocks.items()}
        self._now = dict(self._running)

    def ask(
        self, container: ContainerView, demand: Demand, *, among: Collection[str] | None = None
    ) -> Granted | Refused:
        """What the family's rules say to one container; ``among`` these devices alone, if they are named."""
        policy, states = self.rules[demand.device_type], self._now.get(demand.device_type, ())
        if among is not None:
            states = tuple([state for state in states if state.uuid in among])
        context = self._context(demand)
        standing = in_order(policy, states, context, scoring([demand], self.weighing))
        outcome = fit(policy, standing, context)
        if demand.count > len(states) and not any(map(policy.again, states)):
            reasons = {Reason.TOO_FEW_ON_NODE: 1}
            outcome = Refused(demand=demand, total=len(states), reasons=reasons, seen=outcome.seen)
        self.steps.append(Step(container=container, context=context, states=standing, outcome=outcome))
        return outcome

    def take(self, device_type: str, grants: Sequence[Grant]) -> str:
        """Book the open container's part of one family. The reason why that cannot be, or nothing."""
        after = {state.info.id: state for state in self._now[device_type]}
        recorded: list[Grant] = []
        for grant in grants:
            booking = self.rules[device_type].book(after[grant.uuid], grant, self.pod)
            if isinstance(booking, Reason):
                return told({booking: 1}, len(after))
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
        granted = [device_type for device_type in self.rules if any(device_type in pieces for pieces in self._pieces)]
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
        stock = self.site.stocks.get(demand.device_type)
        containers, closed = self.pod.containers, self._pieces
        inits = ((),) * sum([container.alone for container in containers])
        running = [pieces for container, pieces in zip(containers, closed, strict=False) if not container.alone]
        return Context(
            demand=demand,
            pod=self.pod,
            node=self.site.node,
            links=stock.links if stock else NO_LINKS,
            given={
                device_type: (*inits, *[pieces.get(device_type, ()) for pieces in running])
                for device_type in self.rules
            },
            quota=self.circumstances.quota,
            order=self.circumstances.order,
            solved=self.circumstances.solved,
            listings=self.listings,
        )


def refusal(outcome: Refused, node: NodeView) -> str:
    """HAMi's text, with the family's details. That a node has too few devices comes without numbers.

    What the node itself says of it follows.
    """
    text = Reason.TOO_FEW_ON_NODE if Reason.TOO_FEW_ON_NODE in outcome.reasons else outcome.detailed
    said = refused(node.annotations, outcome.demand.device_type)
    against = {*outcome.reasons, *outcome.seen[1]}  # some families tell one reason in place of their devices'
    words = [OURS[reason] for reason in OURS if reason in against]
    if said and (said.what == "all" or Reason.WHOLE_ONLY in against):
        words.append(str(said))
    return f"{text} ({'; '.join(words)})" if words else text


def in_order(
    policy: Policy, states: Sequence[DeviceState], context: Context, full: Callable[[DeviceState], float]
) -> tuple[DeviceState, ...]:
    """The devices as ``fit`` takes them, best last. Where only devices of a group serve together, groups stay whole."""
    groups = tuple(policy.group(states[::-1], context))
    return ordered(states, context.words, full, numa_first=len(groups) > 1)


def _larger(one: DeviceState, other: DeviceState) -> DeviceState:
    """What must be kept free for both, when they do not run at the same time."""
    return replace(
        one,
        slots=max(one.slots, other.slots),
        memory=max(one.memory, other.memory),
        cores=max(one.cores, other.cores),
        slices=one.slices if len(one.slices) >= len(other.slices) else other.slices,
    )


def demands(pod: PodView, rules: Rules) -> Demands | Invalid:
    """What the pod's containers ask for. One amount that means nothing makes the whole pod invalid."""
    found: list[Mapping[str, Demand]] = []
    for container in pod.containers:
        asked = {device_type: policy.request(container) for device_type, policy in rules.items()}
        invalid = next((one for one in asked.values() if isinstance(one, Invalid)), None)
        if invalid:
            return invalid
        found.append({device_type: one for device_type, one in asked.items() if isinstance(one, Demand)})
    return tuple(found)


def requested(wanted: Demands, rules: Rules) -> Rules:
    """The families of which a pod asks for something."""
    words = {device_type for one in wanted for device_type in one}
    return {device_type: policy for device_type, policy in rules.items() if device_type in words}


def overlong(pod: PodView, asked: Rules) -> Invalid | None:
    """An annotation by which the pod selects devices of these families, and which is too long to be read."""
    keys = [key for policy in asked.values() for key in consulted(policy.serves)]
    return oversized(pod.annotations, [ORDER_KEY, *keys]) if asked else None


def place(pod: PodView, rules: Rules, site: Site, circumstances: Circumstances | None = None) -> Placed | Unplaced:
    """Which devices of the node each container gets, or the first reason why not. A pod that asks for nothing fits."""
    return placing(pod, rules, circumstances)(site)


def placing(
    pod: PodView, rules: Rules, circumstances: Circumstances | None = None
) -> Callable[[Site], Placed | Unplaced]:
    """``place`` for one node after the other: the pod is read once, and families that it does not ask are left out."""
    walked = walking(pod, rules, circumstances)
    return lambda site: at_once(walked(site))


Walked = Pausing[Placed | Unplaced]


def walking(pod: PodView, rules: Rules, circumstances: Circumstances | None = None) -> Callable[[Site], Walked]:
    """The same, with a pause after each container that was asked for."""
    wanted, weighing = demands(pod, rules), weights(pod.annotations)
    if isinstance(wanted, Invalid):
        return _nowhere(str(wanted))
    if isinstance(weighing, Invalid):
        return _nowhere(str(weighing))
    asked = requested(wanted, rules)
    if too_long := overlong(pod, asked):
        return _nowhere(str(too_long))
    around, listings = circumstances or Circumstances(), Listings(pod.annotations)

    def walked(site: Site) -> Walked:
        walk = Walk(pod=pod, rules=asked, site=site, weighing=weighing, circumstances=around, listings=listings)
        return _walked(walk, wanted)

    return walked


def holding_still(pod: PodView, rules: Rules, site: Site, has: Mapping[str, Sequence[Piece]], order: str) -> str:
    """Why the pod cannot have on this node what it was given; empty when it can. ``has`` are the pieces that are not
    empty, by family word: the N-th is the N-th asking container's.

    Each container is tried with its own devices alone. The namespace's quota is no matter any more.
    """
    wanted = demands(pod, rules)
    if isinstance(wanted, Invalid):
        return str(wanted)
    asked = requested(wanted, rules)
    left = {device_type: deque(pieces) for device_type, pieces in has.items()}
    walk = Walk(
        pod=pod,
        rules=asked,
        site=site,
        weighing=EVEN,
        circumstances=Circumstances(order=order),
        listings=Listings(pod.annotations),
    )
    for container, demands_of in zip(pod.containers, wanted, strict=True):
        for device_type, demand in demands_of.items():
            pieces = left.get(device_type)
            if not pieces:
                return f"the decision has no {device_type} devices for container {container.name}"
            names = {grant.uuid for grant in pieces.popleft()}
            outcome = walk.ask(container, demand, among=names)
            if isinstance(outcome, Refused):
                return f"{', '.join(sorted(names))}: {refusal(outcome, walk.site.node)}"
            if conflict := walk.take(device_type, outcome.grants):
                return f"{', '.join(sorted(names))}: {conflict}"
        walk.close(container)
    return ""


def _nowhere(why: str) -> Callable[[Site], Walked]:
    def walked(site: Site) -> Walked:
        yield
        return Unplaced(site=site, why=why)

    return walked


def _walked(walk: Walk, wanted: Demands) -> Walked:
    """The whole way, or to the first refusal."""
    for container, asked in zip(walk.pod.containers, wanted, strict=True):
        for device_type, demand in asked.items():
            outcome = walk.ask(container, demand)
            yield
            if isinstance(outcome, Refused):
                return Unplaced(site=walk.site, why=refusal(outcome, walk.site.node), steps=tuple(walk.steps))
            if conflict := walk.take(device_type, outcome.grants):
                return Unplaced(site=walk.site, why=conflict, steps=tuple(walk.steps))
        walk.close(container)
    return Placed(site=walk.site, given=walk.given, steps=tuple(walk.steps), after=walk.after)
