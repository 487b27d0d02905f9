"""A whole pod on one node: which devices each of its containers gets, or why it gets none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_plugin.model.views import PodView
from hami_plugin.policy.demand import Demand, Invalid
from hami_plugin.policy.engine import Refused
from hami_plugin.policy.order import weights
from hami_plugin.policy.sites import Circumstances, Demands, Placed, Rules, Site, Unplaced
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


def place(pod: PodView, rules: Rules, site: Site, circumstances: Circumstances | None = None) -> Placed | Unplaced:
    """Which devices of the node each container gets, or the first reason why not. A pod that asks for nothing fits."""
    return placing(pod, rules, circumstances)(site)


def placing(
    pod: PodView, rules: Rules, circumstances: Circumstances | None = None
) -> Callable[[Site], Placed | Unplaced]:
    """``place`` for one node after the other: the pod is read once, and families that it does not ask are left out."""
    wanted, weighing = demands(pod, rules), weights(pod.annotations)
    for invalid in (wanted, weighing):
        if isinstance(invalid, Invalid):
            return _nowhere(str(invalid))
    assert not isinstance(wanted, Invalid)
    assert not isinstance(weighing, Invalid)
    asked = {word: policy for word, policy in rules.items() if any(word in one for one in wanted)}
    around = circumstances or Circumstances()

    def placed(site: Site) -> Placed | Unplaced:
        return _walked(Walk(pod=pod, rules=asked, site=site, weighing=weighing, circumstances=around), wanted)

    return placed


def _nowhere(why: str) -> Callable[[Site], Unplaced]:
    return lambda site: Unplaced(site=site, why=why)


def _walked(walk: Walk, wanted: Demands) -> Placed | Unplaced:
    """The whole way, or to the first refusal."""
    for container, asked in zip(walk.pod.containers, wanted, strict=True):
        for word, demand in asked.items():
            outcome = walk.ask(container, demand)
            if isinstance(outcome, Refused):
                return Unplaced(site=walk.site, why=refusal(outcome), steps=tuple(walk.steps))
            if conflict := walk.take(word, outcome.grants):
                return Unplaced(site=walk.site, why=conflict, steps=tuple(walk.steps))
        walk.close(container)
    return Placed(site=walk.site, given=walk.given, steps=tuple(walk.steps), after=walk.after)
