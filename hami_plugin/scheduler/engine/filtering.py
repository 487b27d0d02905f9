"""Which of the nodes that kube-scheduler offers a pod goes to: the extender's filter, which leaves at most one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from hami_plugin.model.pausing import Outcome, Pausing, at_once
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.scheduler.engine.ledger import Entry, Ledger
from hami_plugin.scheduler.engine.pods import (
    Circumstances,
    Placed,
    Rules,
    Site,
    Unplaced,
    demands,
    holding_still,
    walking,
)
from hami_plugin.scheduler.engine.reasons import read
from hami_plugin.scheduler.engine.satisfiable import exhausted, miscounted, without_device
from hami_plugin.scheduler.engine.scores import Decision, Ranking, fullness
from hami_plugin.scheduler.engine.states import Given
from hami_plugin.scheduler.engine.survey import contested, named_by, occupied, registered, rules
from hami_plugin.scheduler.engine.topology.choice import Solved
from hami_plugin.sdk import Family

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Occupied:
    """A node with what these entries have of it. Whatever it was made of is compared by identity."""

    families: tuple[Family, ...]
    site: Site
    entries: Sequence[Entry]
    result: Site

    def still(self, families: tuple[Family, ...], site: Site, entries: Sequence[Entry]) -> bool:
        same = self.site is site and self.families is families and len(self.entries) == len(entries)
        return same and all(map(is_, self.entries, entries))


class Occupancy:
    """Nodes with what pods have of them. A node is worked out anew when it or one of its entries is another object:
    whoever keeps nodes and the ledger puts new values in the place of old ones, and changes none.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Occupied] = {}

    def of(self, families: tuple[Family, ...], site: Site, entries: Sequence[Entry]) -> Site:
        """The node, less what the entries have of it."""
        name = site.node.name
        known = self._known.get(name)
        if known is None or not known.still(families, site, entries):
            result = occupied(site, families, [one.held for one in entries])
            known = self._known[name] = _Occupied(families=families, site=site, entries=entries, result=result)
        return known.result

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes, once they are the most."""
        if len(self._known) > 2 * len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One is handed from question to question. Nothing in it changes an answer; without it everything takes longer."""

    occupancy: Occupancy = field(default_factory=Occupancy)
    solved: Solved = field(default_factory=Solved)


UNREGISTERED = "node unregistered"
"""HAMi's reason for a node of which no device is known."""

MAX_ASKED = 50_000
"""So often one decision asks a family for a container's devices on a node: a pod with many containers is not tried on
every node of a large cluster.
"""

_FEWER = "give the pod fewer containers with devices, or select nodes"

Search = Pausing["Filtered | Unasked"]
"""A decision that pauses often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a scheduler knows when it is asked: the cluster's nodes by name, as registered, and who has what of them.

    ``kept`` is worth handing on from one scene to the next.
    """

    families: tuple[Family, ...]
    nodes: Mapping[str, Site]
    ledger: Ledger = field(default_factory=Ledger)
    circumstances: Circumstances = field(default_factory=Circumstances)
    node_order: str = "binpack"
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """The pod asks for no device: every node will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """Where the pod goes, if anywhere, and why not to the others."""

    placed: Placed | None
    failed: Mapping[str, str]

    @property
    def summary(self) -> str:
        """On how many nodes which reason stands in the way, the most frequent first. A node may have several."""
        counts: Counter[str] = Counter()
        for why, nodes in Counter(self.failed.values()).items():
            counts.update(dict.fromkeys(read(why) or [why], nodes))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} on {count} of {len(self.failed)} nodes" for reason, count in ordered)


def filtered(scene: Scene, pod: PodView, names: Iterable[str]) -> Filtered | Unasked:
    """Choose among these nodes. What the pod itself has from an earlier decision is free again."""
    return at_once(searching(scene, pod, names))


def searching(scene: Scene, pod: PodView, names: Iterable[str]) -> Search:
    """The same, with pauses. Each node is as the scene has it when its turn comes."""
    asked_of = named_by(pod, scene.families)
    policies = rules(asked_of)
    wanted = demands(pod, policies)
    yield
    if lone := without_device(pod, asked_of):  # one that admission has not seen
        return Filtered(placed=None, failed=dict.fromkeys(names, lone))
    if isinstance(wanted, tuple) and not any(wanted):
        return Unasked()
    scene.kept.occupancy.keep(scene.nodes)
    around = replace(scene.circumstances, solved=scene.kept.solved)
    tried_on = trying(pod, policies, around, order=scene.node_order)
    best: Scored | None = None
    better = standing(node_order(pod, scene.node_order))
    failed: dict[str, str] = {}
    asked = 0
    for name in names:
        yield
        site = offered_by(scene, pod, name)
        if site is None:
            failed[name] = UNREGISTERED
        elif asked >= MAX_ASKED:
            failed[name] = f"not tried: {len(pod.containers)} containers were tried on {len(failed)} nodes; {_FEWER}"
        else:
            trial = Outcome(tried_on(site))
            for _pause in trial:
                asked += 1
                yield
            one = trial.value
            if isinstance(one, Unplaced):
                failed[name] = one.why
            elif wrong := miscounted(pod, one.placed.given, asked_of) or exhausted(pod, site, asked_of):
                failed[name] = wrong
            elif best is None or better(one) >= better(best):
                best = one
    return Filtered(placed=best.placed if best else None, failed=failed)


def confirmed(families: tuple[Family, ...], site: Site, own: Entry, others: Sequence[Entry], *, order: str) -> str:
    """Why a pod cannot have what was decided, beside those that are bound to its node; empty when it can.

    ``others`` may be of other schedulers' hands, decided at the same time.
    """
    held = [one.held for one in others]
    pieces = {device_type: [piece for piece in holding.pieces if piece] for device_type, holding in own.held.items()}
    left = occupied(site, families, held)
    why = holding_still(own.pod, rules(named_by(own.pod, families)), left, pieces, order)
    return why or contested(site, families, own.held, held) or exhausted(own.pod, left, families)


def offered_by(scene: Scene, pod: PodView, name: str) -> Site | None:
    """What a node has for this pod; None where no device of it is known. The same object while nothing changes."""
    known = scene.nodes.get(name)
    if known is None or not any(stock.states for stock in known.stocks.values()):
        return None
    return scene.kept.occupancy.of(scene.families, known, scene.ledger.on(name, without=pod.uid))


def simulated(scene: Scene, pod: PodView, nodes: Sequence[NodeView]) -> Filtered | Unasked:
    """The same for nodes that need not exist, as a cluster autoscaler asks: nobody has anything of them."""
    return at_once(simulating(scene, pod, nodes))


def simulating(scene: Scene, pod: PodView, nodes: Iterable[NodeView]) -> Search:
    """The same, with pauses."""
    offered: dict[str, Site] = {}
    for node in nodes:
        offered[node.name] = registered(node, scene.families).site
        yield
    alone = replace(scene, nodes=offered, ledger=Ledger(), kept=Kept(solved=scene.kept.solved))
    return (yield from searching(alone, pod, offered))
