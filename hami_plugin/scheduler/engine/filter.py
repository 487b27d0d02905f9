"""Which of the nodes that kube-scheduler offers a pod goes to: the extender's filter, which leaves at most one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from hami_plugin.model.pausing import Pausing, at_once
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.scheduler.engine.devices import Given, NodeInfo
from hami_plugin.scheduler.engine.fit import (
    CycleOptions,
    PodFit,
    Policies,
    Unschedulable,
    demands,
    fitting,
    pod_request,
    refit_pod,
)
from hami_plugin.scheduler.engine.node_info import (
    contested,
    occupied,
    read_idle_node,
    requested_families,
    scheduling_policies,
)
from hami_plugin.scheduler.engine.node_resources import insufficient_ids, miscounted, without_device
from hami_plugin.scheduler.engine.pod_info import PodIndex, PodInfo
from hami_plugin.scheduler.engine.reasons import parse_summary
from hami_plugin.scheduler.engine.requests import Invalid
from hami_plugin.scheduler.engine.scores import Decision, Ranking, fullness
from hami_plugin.scheduler.engine.topology import ChoiceCache
from hami_plugin.sdk import Family

ORDER_KEY = "hami.io/node-scheduler-policy"
RANKING = 10_000
"""How much more a ranking weighs than how full a node is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScore:
    """A node where the pod fits, and what it is worth."""

    placed: PodFit
    score: float

    @property
    def name(self) -> str:
        return self.placed.node_info.node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredNodes:
    """Where the pod fits, worst node first, and why it does not fit elsewhere. The last one is taken."""

    fitting: tuple[NodeScore, ...]
    failed: tuple[Unschedulable, ...]

    @property
    def best(self) -> PodFit | None:
        return self.fitting[-1].placed if self.fitting else None


def score_nodes(
    pod: PodView, policies: Policies, node_infos: Iterable[NodeInfo], options: CycleOptions, *, order: str = "binpack"
) -> ScoredNodes:
    """Try all nodes. ``order`` is the cluster's node order, which the pod's annotation overrides."""
    outcomes = list(try_nodes(pod, policies, node_infos, options, order=order))
    scored = [one for one in outcomes if isinstance(one, NodeScore)]
    failed = tuple([one for one in outcomes if isinstance(one, Unschedulable)])
    return ScoredNodes(fitting=ranked(scored, node_order(pod, order)), failed=failed)


def try_nodes(
    pod: PodView, policies: Policies, node_infos: Iterable[NodeInfo], options: CycleOptions, *, order: str = "binpack"
) -> Iterator[NodeScore | Unschedulable]:
    """One node after the other. The pod is read once."""
    request, order = pod_request(pod, policies), node_order(pod, order)
    for node_info in node_infos:
        if isinstance(request, Invalid):
            yield Unschedulable(node_info=node_info, why=str(request))
            continue
        fit = at_once(fitting(request, node_info, options))
        if isinstance(fit, PodFit):
            yield NodeScore(placed=fit, score=node_score(pod, policies, node_info, fit.given, order))
        else:
            yield fit


def node_order(pod: PodView, order: str) -> str:
    return pod.annotations.get(ORDER_KEY, order)


def node_score(pod: PodView, policies: Policies, node_info: NodeInfo, given: Given, order: str) -> float:
    """How full the node is before, and what the families with a part in the decision think of it."""
    total = fullness(node_info.states)
    for device_type, pieces in given.items():
        before = node_info.pools[device_type].states if device_type in node_info.pools else ()
        opinion = policies[device_type].score(
            Decision(node=node_info.node, pod=pod, pieces=pieces, before=before, order=order)
        )
        if isinstance(opinion, Ranking):
            total += opinion.value * (-RANKING if order == "spread" else RANKING)
        else:
            total += opinion
    return round(total, 6)  # so that nodes that are equally full are equal in spite of binary fractions


def ranked(scored: Iterable[NodeScore], order: str) -> tuple[NodeScore, ...]:
    """The best last: the least full under ``spread``, else the fullest; of equals the last by name."""
    return tuple(sorted(scored, key=rank_key(order)))


def rank_key(order: str) -> Callable[[NodeScore], tuple[float, str]]:
    """What makes a node better than another under a node order."""
    away = -1 if order == "spread" else 1
    return lambda one: (away * one.score, one.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Occupied:
    """A node with what these entries have of it. Whatever it was made of is compared by identity."""

    families: tuple[Family, ...]
    node_info: NodeInfo
    entries: Sequence[PodInfo]
    result: NodeInfo

    def still(self, families: tuple[Family, ...], node_info: NodeInfo, entries: Sequence[PodInfo]) -> bool:
        same = self.node_info is node_info and self.families is families and len(self.entries) == len(entries)
        return same and all(map(is_, self.entries, entries))


class NodeInfoCache:
    """Nodes with what pods have of them. A node is worked out anew when it or one of its entries is another object:
    whoever keeps nodes and pods puts new values in the place of old ones, and changes none.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Occupied] = {}

    def of(self, families: tuple[Family, ...], node_info: NodeInfo, entries: Sequence[PodInfo]) -> NodeInfo:
        """The node, less what the entries have of it."""
        name = node_info.node.name
        known = self._known.get(name)
        if known is None or not known.still(families, node_info, entries):
            result = occupied(node_info, families, [one.held for one in entries])
            known = self._known[name] = _Occupied(
                families=families, node_info=node_info, entries=entries, result=result
            )
        return known.result

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes, once they are the most."""
        if len(self._known) > 2 * len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCache:
    """One is handed from question to question. Nothing in it changes an answer; without it everything takes longer."""

    occupancy: NodeInfoCache = field(default_factory=NodeInfoCache)
    choices: ChoiceCache = field(default_factory=ChoiceCache)


UNREGISTERED = "node unregistered"
"""HAMi's reason for a node of which no device is known."""

MAX_ASKED = 50_000
"""So often one decision asks a family for a container's devices on a node: a pod with many containers is not tried on
every node of a large cluster.
"""

_FEWER = "give the pod fewer containers with devices, or select nodes"

Filtering = Pausing["FilterResult | NoDemand"]
"""A decision that pauses often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What a scheduler knows when it is asked: the cluster's nodes by name, as registered, and who has what of them.

    ``kept`` is worth handing on from one snapshot to the next.
    """

    families: tuple[Family, ...]
    nodes: Mapping[str, NodeInfo]
    pods: PodIndex = field(default_factory=PodIndex)
    options: CycleOptions = field(default_factory=CycleOptions)
    node_order: str = "binpack"
    kept: FilterCache = field(default_factory=FilterCache)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDemand:
    """The pod asks for no device: every node will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Where the pod goes, if anywhere, and why not to the others."""

    placed: PodFit | None
    failed: Mapping[str, str]

    @property
    def summary(self) -> str:
        """On how many nodes which reason stands in the way, the most frequent first. A node may have several."""
        counts: Counter[str] = Counter()
        for why, nodes in Counter(self.failed.values()).items():
            counts.update(dict.fromkeys(parse_summary(why) or [why], nodes))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} on {count} of {len(self.failed)} nodes" for reason, count in ordered)


def filter_nodes(snapshot: ClusterSnapshot, pod: PodView, names: Iterable[str]) -> FilterResult | NoDemand:
    """Choose among these nodes. What the pod itself has from an earlier decision is free again."""
    return at_once(filtering(snapshot, pod, names))


def filtering(snapshot: ClusterSnapshot, pod: PodView, names: Iterable[str]) -> Filtering:
    """The same, with pauses. Each node is as the snapshot has it when its turn comes."""
    families = requested_families(pod, snapshot.families)
    policies = scheduling_policies(families)
    wanted = demands(pod, policies)
    yield
    if lone := without_device(pod, families):  # one that admission has not seen
        return FilterResult(placed=None, failed=dict.fromkeys(names, lone))
    if isinstance(wanted, tuple) and not any(wanted):
        return NoDemand()
    request, order = pod_request(pod, policies, wanted), node_order(pod, snapshot.node_order)
    options = replace(snapshot.options, choices=snapshot.kept.choices)
    snapshot.kept.occupancy.keep(snapshot.nodes)
    rank = rank_key(order)
    best: NodeScore | None = None
    failed: dict[str, str] = {}
    asked = 0
    for name in names:
        yield
        node_info = node_info_for(snapshot, pod, name)
        if node_info is None:
            failed[name] = UNREGISTERED
        elif isinstance(request, Invalid):
            failed[name] = str(request)
        elif asked >= MAX_ASKED:
            failed[name] = f"not tried: {len(pod.containers)} containers were tried on {len(failed)} nodes; {_FEWER}"
        else:
            fit = yield from fitting(request, node_info, options)
            asked += len(fit.steps)
            if isinstance(fit, Unschedulable):
                failed[name] = fit.why
            elif wrong := miscounted(pod, fit.given, families) or insufficient_ids(pod, node_info, families):
                failed[name] = wrong
            else:
                scored = NodeScore(placed=fit, score=node_score(pod, policies, node_info, fit.given, order))
                if best is None or rank(scored) >= rank(best):
                    best = scored
    return FilterResult(placed=best.placed if best else None, failed=failed)


def conflict(
    families: tuple[Family, ...], node_info: NodeInfo, own: PodInfo, others: Sequence[PodInfo], *, order: str
) -> str:
    """Why a pod cannot have what was decided, beside those that are bound to its node; empty when it can.

    ``others`` may be of other schedulers' hands, decided at the same time.
    """
    held = [one.held for one in others]
    pieces = {device_type: [piece for piece in holding.pieces if piece] for device_type, holding in own.held.items()}
    left = occupied(node_info, families, held)
    why = refit_pod(own.pod, scheduling_policies(requested_families(own.pod, families)), left, pieces, order)
    return why or contested(node_info, families, own.held, left) or insufficient_ids(own.pod, left, families)


def node_info_for(snapshot: ClusterSnapshot, pod: PodView, name: str) -> NodeInfo | None:
    """What a node has for this pod; None where no device of it is known. The same object while nothing changes."""
    known = snapshot.nodes.get(name)
    if known is None or not any(pool.states for pool in known.pools.values()):
        return None
    return snapshot.kept.occupancy.of(snapshot.families, known, snapshot.pods.on(name, without=pod.uid))


def simulate(snapshot: ClusterSnapshot, pod: PodView, nodes: Sequence[NodeView]) -> FilterResult | NoDemand:
    """The same for nodes that need not exist, as a cluster autoscaler asks: nobody has anything of them."""
    return at_once(simulating(snapshot, pod, nodes))


def simulating(snapshot: ClusterSnapshot, pod: PodView, nodes: Iterable[NodeView]) -> Filtering:
    """The same, with pauses."""
    offered: dict[str, NodeInfo] = {}
    for node in nodes:
        offered[node.name] = read_idle_node(node, snapshot.families).node_info
        yield
    alone = replace(snapshot, nodes=offered, pods=PodIndex(), kept=FilterCache(choices=snapshot.kept.choices))
    return (yield from filtering(alone, pod, offered))
