"""A pod's way over a node: each of its containers, each family that it asks for, one after the other.

Plain init containers run one at a time and before the others: each needs room for itself beside the sidecars that run
already, and all that they take together is the most that one of them has of a device. Everything else runs together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.links import NO_LINKS
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.engine import Granted, Policy, Refused, fit
from hami_plugin.policy.listings import Listings
from hami_plugin.policy.order import Weights, ordered, scoring
from hami_plugin.policy.reasons import OURS, Reason, told
from hami_plugin.policy.sites import Circumstances, Rules, Site, Step
from hami_plugin.policy.states import Context, DeviceState, Given, Piece
from hami_plugin.protocol.register import refused


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
        self._running = {word: stock.states for word, stock in self.site.stocks.items()}
        self._now = dict(self._running)

    def ask(
        self, container: ContainerView, demand: Demand, *, among: Collection[str] | None = None
    ) -> Granted | Refused:
        """What the family's rules say to one container; ``among`` these devices alone, if they are named."""
        policy, states = self.rules[demand.word], self._now.get(demand.word, ())
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

    def take(self, word: str, grants: Sequence[Grant]) -> str:
        """Book the open container's part of one family. The reason why that cannot be, or nothing."""
        after = {state.info.id: state for state in self._now[word]}
        recorded: list[Grant] = []
        for grant in grants:
            booking = self.rules[word].book(after[grant.uuid], grant, self.pod)
            if isinstance(booking, Reason):
                return told({booking: 1}, len(after))
            after[grant.uuid], one = booking
            recorded.append(one)
        self._now[word] = tuple(after.values())
        self._open[word] = tuple(recorded)
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
        """One piece for each closed container, under the words of which the pod has anything."""
        words = [word for word in self.rules if any(word in pieces for pieces in self._pieces)]
        return {word: tuple(pieces.get(word, ()) for pieces in self._pieces) for word in words}

    @property
    def after(self) -> Mapping[str, tuple[DeviceState, ...]]:
        """Per device the larger of what runs together and of each plain init container's part."""
        final = dict(self._running)
        for peak in self._peaks:
            final |= {word: tuple(map(_larger, final[word], states)) for word, states in peak.items()}
        return final

    def _context(self, demand: Demand) -> Context:
        """Of what the pod has so far, the rules see what will run beside the container, after an empty piece for each
        plain init container: so no rule takes a running container for one of those.
        """
        stock = self.site.stocks.get(demand.word)
        containers, closed = self.pod.containers, self._pieces
        inits = ((),) * sum([container.alone for container in containers])
        running = [pieces for container, pieces in zip(containers, closed, strict=False) if not container.alone]
        return Context(
            demand=demand,
            pod=self.pod,
            node=self.site.node,
            links=stock.links if stock else NO_LINKS,
            given={word: (*inits, *[pieces.get(word, ()) for pieces in running]) for word in self.rules},
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
    said = refused(node.annotations, outcome.demand.word)
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
