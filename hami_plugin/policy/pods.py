"""A whole pod on one node: which devices each of its containers gets, or why it gets none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hami_plugin.model.pausing import Pausing, at_once
from hami_plugin.model.views import PodView
from hami_plugin.policy.checks import consulted
from hami_plugin.policy.demand import Demand, Invalid
from hami_plugin.policy.engine import Refused
from hami_plugin.policy.listings import Listings, oversized
from hami_plugin.policy.order import EVEN, weights
from hami_plugin.policy.sites import Circumstances, Demands, Placed, Rules, Site, Unplaced
from hami_plugin.policy.states import ORDER_KEY, Piece
from hami_plugin.policy.walk import Walk, refusal


def demands(pod: PodView, rules: Rules) -> Demands | Invalid:
    """What the pod's containers ask for. One amount that means nothing makes the whole pod invalid."""
    found: list[Mapping[str, Demand]] = []
    for container in pod.containers:
        asked = {word: policy.request(container) for word, policy in rules.items()}
        invalid = next((one for one in asked.values() if isinstance(one, Invalid)), None)
        if invalid:
            return invalid
        found.append({word: one for word, one in asked.items() if isinstance(one, Demand)})
    return tuple(found)


def requested(wanted: Demands, rules: Rules) -> Rules:
    """The families of which a pod asks for something."""
    words = {word for one in wanted for word in one}
    return {word: policy for word, policy in rules.items() if word in words}


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
    left = {word: deque(pieces) for word, pieces in has.items()}
    walk = Walk(
        pod=pod,
        rules=asked,
        site=site,
        weighing=EVEN,
        circumstances=Circumstances(order=order),
        listings=Listings(pod.annotations),
    )
    for container, demands_of in zip(pod.containers, wanted, strict=True):
        for word, demand in demands_of.items():
            pieces = left.get(word)
            if not pieces:
                return f"the decision has no {word} devices for container {container.name}"
            names = {grant.uuid for grant in pieces.popleft()}
            outcome = walk.ask(container, demand, among=names)
            if isinstance(outcome, Refused):
                return f"{', '.join(sorted(names))}: {refusal(outcome, walk.site.node)}"
            if conflict := walk.take(word, outcome.grants):
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
        for word, demand in asked.items():
            outcome = walk.ask(container, demand)
            yield
            if isinstance(outcome, Refused):
                return Unplaced(site=walk.site, why=refusal(outcome, walk.site.node), steps=tuple(walk.steps))
            if conflict := walk.take(word, outcome.grants):
                return Unplaced(site=walk.site, why=conflict, steps=tuple(walk.steps))
        walk.close(container)
    return Placed(site=walk.site, given=walk.given, steps=tuple(walk.steps), after=walk.after)
