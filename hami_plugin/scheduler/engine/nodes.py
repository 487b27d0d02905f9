"""Which of several nodes a pod goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hami_plugin.model.pausing import Pausing, at_once
from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.pods import Circumstances, Placed, Rules, Site, Unplaced, walking
from hami_plugin.scheduler.engine.scores import Decision, Ranking, fullness
from hami_plugin.scheduler.engine.states import Given

ORDER_KEY = "hami.io/node-scheduler-policy"
RANKING = 10_000
"""How much more a ranking weighs than how full a node is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A node where the pod fits, and what it is worth."""

    placed: Placed
    score: float

    @property
    def name(self) -> str:
        return self.placed.site.node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where the pod fits, worst node first, and why it does not fit elsewhere. The last one is taken."""

    fitting: tuple[Scored, ...]
    failed: tuple[Unplaced, ...]

    @property
    def best(self) -> Placed | None:
        return self.fitting[-1].placed if self.fitting else None


def choose(
    pod: PodView, rules: Rules, sites: Iterable[Site], circumstances: Circumstances, *, order: str = "binpack"
) -> Choice:
    """Try all nodes. ``order`` is the cluster's node order, which the pod's annotation overrides."""
    outcomes = list(tried(pod, rules, sites, circumstances, order=order))
    scored = [one for one in outcomes if isinstance(one, Scored)]
    failed = tuple([one for one in outcomes if isinstance(one, Unplaced)])
    return Choice(fitting=ranked(scored, node_order(pod, order)), failed=failed)


def tried(
    pod: PodView, rules: Rules, sites: Iterable[Site], circumstances: Circumstances, *, order: str = "binpack"
) -> Iterator[Scored | Unplaced]:
    """One node after the other, for those who need not keep what becomes of each."""
    one = trying(pod, rules, circumstances, order=order)
    return (at_once(one(site)) for site in sites)


def trying(
    pod: PodView, rules: Rules, circumstances: Circumstances, *, order: str = "binpack"
) -> Callable[[Site], Pausing[Scored | Unplaced]]:
    """What becomes of the pod on a node, with a pause after each container that was asked for."""
    walked, order = walking(pod, rules, circumstances), node_order(pod, order)

    def trial(site: Site) -> Pausing[Scored | Unplaced]:
        one = yield from walked(site)
        if isinstance(one, Unplaced):
            return one
        return Scored(placed=one, score=worth(pod, rules, one.site, one.given, order))

    return trial


def node_order(pod: PodView, order: str) -> str:
    return pod.annotations.get(ORDER_KEY, order)


def worth(pod: PodView, rules: Rules, site: Site, given: Given, order: str) -> float:
    """How full the node is before, and what the families with a part in the decision think of it."""
    total = fullness(site.states)
    for device_type, pieces in given.items():
        before = site.stocks[device_type].states if device_type in site.stocks else ()
        opinion = rules[device_type].score(Decision(node=site.node, pod=pod, pieces=pieces, before=before, order=order))
        if isinstance(opinion, Ranking):
            total += opinion.value * (-RANKING if order == "spread" else RANKING)
        else:
            total += opinion
    return round(total, 6)  # so that nodes that are equally full are equal in spite of binary fractions


def ranked(scored: Iterable[Scored], order: str) -> tuple[Scored, ...]:
    """The best last: the least full under ``spread``, else the fullest; of equals the last by name."""
    return tuple(sorted(scored, key=standing(order)))


def standing(order: str) -> Callable[[Scored], tuple[float, str]]:
    """What makes a node better than another under a node order."""
    away = -1 if order == "spread" else 1
    return lambda one: (away * one.score, one.name)
