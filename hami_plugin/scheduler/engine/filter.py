"""Which of the nodes that kube-scheduler offers a pod goes to: the extender's filter, which leaves at most one."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from operator import is_, neg
from typing import TypeVar, overload

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.process.concurrency import Pausing, run_without_pauses
from hami_plugin.scheduler.engine.devices import Given, Invalid, NodeInfo, parse_summary
from hami_plugin.scheduler.engine.fit import (
    CycleOptions,
    PodFit,
    PodRequest,
    Policies,
    Unschedulable,
    fit_pod_pausing,
    pod_demands,
    pod_request,
)
from hami_plugin.scheduler.engine.node_info import (
    ChangeLog,
    PodIndex,
    PodInfo,
    count_mismatch,
    insufficient_ids,
    read_idle_node,
    requested_families,
    scheduling_policies,
    shares_without_device,
    subtract_held,
)
from hami_plugin.scheduler.engine.policy import Decision, Ranking, fullness
from hami_plugin.scheduler.engine.topology import ChoiceCache
from hami_plugin.sdk import Family

T = TypeVar("T")

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
    return ScoredNodes(fitting=rank_nodes(scored, node_order(pod, order)), failed=failed)


def try_nodes(
    pod: PodView, policies: Policies, node_infos: Iterable[NodeInfo], options: CycleOptions, *, order: str = "binpack"
) -> Iterator[NodeScore | Unschedulable]:
    """One node after the other. The pod is read once."""
    request, order = pod_request(pod, policies), node_order(pod, order)
    for node_info in node_infos:
        if isinstance(request, Invalid):
            yield Unschedulable(node_info=node_info, why=str(request))
            continue
        fit = run_without_pauses(fit_pod_pausing(request, node_info, options))
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


def rank_nodes(scored: Iterable[NodeScore], order: str) -> tuple[NodeScore, ...]:
    """The best last: the least full under ``spread``, else the fullest; of equals the last by name."""
    return tuple(sorted(scored, key=rank_key(order)))


def rank_key(order: str) -> Callable[[NodeScore], tuple[float, str]]:
    """What makes a node better than another under a node order."""
    away = -1 if order == "spread" else 1
    return lambda one: (away * one.score, one.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedNode:
    """A node with what these entries have of it. Whatever it was made of is compared by identity."""

    families: tuple[Family, ...]
    node_info: NodeInfo
    entries: Sequence[PodInfo]
    result: NodeInfo

    def still(self, families: tuple[Family, ...], node_info: NodeInfo, entries: Sequence[PodInfo]) -> bool:
        if self.node_info is not node_info or self.families is not families:
            return False
        return self.entries is entries or (len(self.entries) == len(entries) and all(map(is_, self.entries, entries)))


class NodeInfoCache:
    """Nodes with what pods have of them. A node is worked out anew when it or one of its entries is another object:
    whoever keeps nodes and pods puts new values in the place of old ones, and changes none.
    """

    def __init__(self) -> None:
        self._known: dict[str, OccupiedNode] = {}

    def of(self, families: tuple[Family, ...], node_info: NodeInfo, entries: Sequence[PodInfo]) -> OccupiedNode:
        """The node, less what the entries have of it."""
        name = node_info.node.name
        known = self._known.get(name)
        if known is None or not known.still(families, node_info, entries):
            result = subtract_held(node_info, families, [one.held for one in entries])
            known = self._known[name] = OccupiedNode(
                families=families,
                node_info=node_info,
                entries=entries,
                result=result,
            )
        return known

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes, once they are the most."""
        if len(self._known) > 2 * len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}


class ConsultedAnnotations(Mapping[str, str]):
    """A pod's annotations, and which of them were ``read``: pods that differ in others get the same answers."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return self._annotations[key]

    @overload
    def get(self, key: str, /) -> str | None: ...

    @overload
    def get(self, key: str, default: str | T, /) -> str | T: ...

    def get(self, key: str, default: str | T | None = None, /) -> str | T | None:
        """Most are not there: an error for each would take longer than the answer."""
        self.read.add(key)
        return self._annotations.get(key, default)

    def __contains__(self, key: object) -> bool:
        return self.get(str(key)) is not None

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._annotations)
        return iter(self._annotations)

    def __len__(self) -> int:
        return len(self._annotations)


Shape = Hashable
"""What a pod asks for, and the orders of devices and nodes in force."""

Verdict = float | str
"""The score of a node that was tried, or why the pod does not fit."""


@dataclass(slots=True)
class Verdicts:
    """What became of nodes, by their names, up to these marks in the logs of changes of nodes and of pods."""

    outcomes: dict[str, Verdict] = field(default_factory=dict)
    nodes: int = 0
    pods: int = 0

    def __len__(self) -> int:
        return len(self.outcomes)

    def catch_up(self, nodes: ChangeLog, pods: ChangeLog) -> None:
        """Forget the nodes that have changed meanwhile."""
        for log, mark in ((nodes, self.nodes), (pods, self.pods)) if self.outcomes else ():
            changed = log.since(mark)
            for name in list(self.outcomes) if changed is None else changed:
                self.outcomes.pop(name, None)
        self.nodes, self.pods = nodes.mark, pods.mark


MAX_VERDICTS = 100_000
"""How many are kept, of all shapes together: those of 20 kinds of pods on 5,000 nodes."""


class VerdictCache:
    """What became of each node for pods that ask alike. A filter then works out only the nodes that have changed.

    Pods are alike when they have the same shape, and the same text in each annotation that any of them was asked for.
    The shapes that were asked about longest ago go first.
    """

    def __init__(self, room: int = MAX_VERDICTS) -> None:
        self._room = room
        self._known: OrderedDict[tuple[Shape, tuple[str | None, ...]], Verdicts] = OrderedDict()
        self._consulted: dict[Shape, tuple[str, ...]] = {}

    def of(self, shape: Shape, annotations: Mapping[str, str]) -> Verdicts:
        """The verdicts for pods like this one: to be added to, and given back to ``keep``."""
        return self._known.get(self._key(shape, annotations)) or Verdicts()

    def keep(self, shape: Shape, annotations: Mapping[str, str], read: Collection[str], verdicts: Verdicts) -> None:
        """Keep the verdicts for such pods. ``read`` are the annotations that the pod was asked for."""
        consulted = self._consulted.get(shape, ())
        if not set(read).issubset(consulted):
            self._consulted[shape] = tuple(sorted({*consulted, *read}))
        key = self._key(shape, annotations)
        self._known[key] = verdicts
        self._known.move_to_end(key)
        while len(self._known) > 1 and sum(map(len, self._known.values())) > self._room:
            self._known.popitem(last=False)
        if len(self._consulted) > 2 * len(self._known):
            there = {shape for shape, _ in self._known}
            self._consulted = {shape: names for shape, names in self._consulted.items() if shape in there}

    def _key(self, shape: Shape, annotations: Mapping[str, str]) -> tuple[Shape, tuple[str | None, ...]]:
        return shape, tuple([annotations.get(name) for name in self._consulted.get(shape, ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCache:
    """One is handed from question to question. Nothing in it changes an answer; without it everything takes longer."""

    occupancy: NodeInfoCache = field(default_factory=NodeInfoCache)
    choices: ChoiceCache = field(default_factory=ChoiceCache)
    verdicts: VerdictCache = field(default_factory=VerdictCache)


UNREGISTERED = "node unregistered"
"""HAMi's reason for a node of which no device is known."""

MAX_ASKED = 50_000
"""So often one decision asks a family for a container's devices on a node: a pod with many containers is not tried on
every node of a large cluster.
"""

PART = 500
"""So many nodes are looked up between two pauses: well below a millisecond."""

_FEWER = "give the pod fewer containers with devices, or select nodes"

Filtering = Pausing["FilterResult | NoDemand"]
"""A decision that pauses often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What a scheduler knows when it is asked: the cluster's nodes by name, as registered, and who has what of them.

    ``changes`` names each of the nodes that is replaced, added or removed: whoever changes nothing needs no log.
    ``kept`` is worth handing on from one snapshot to the next.
    """

    families: tuple[Family, ...]
    nodes: Mapping[str, NodeInfo]
    changes: ChangeLog = field(default_factory=ChangeLog)
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
    return run_without_pauses(filter_nodes_pausing(snapshot, pod, names))


def filter_nodes_pausing(snapshot: ClusterSnapshot, pod: PodView, names: Iterable[str]) -> Filtering:
    """The same, with pauses. Each node is as the snapshot has it when its turn comes."""
    families = requested_families(pod, snapshot.families)
    policies = scheduling_policies(families)
    wanted = pod_demands(pod, policies)
    yield
    if lone := shares_without_device(pod, families):  # one that admission has not seen
        return FilterResult(placed=None, failed=dict.fromkeys(names, lone))
    if isinstance(wanted, tuple) and not any(wanted):
        return NoDemand()
    annotations = ConsultedAnnotations(pod.annotations)
    alike = without_identity(pod, annotations)
    request, order = pod_request(alike, policies, wanted), node_order(alike, snapshot.node_order)
    if isinstance(request, Invalid):
        return FilterResult(placed=None, failed=dict.fromkeys(names, str(request)))
    snapshot.kept.occupancy.keep(snapshot.nodes)
    snapshot.pods.keep(snapshot.nodes)
    trial = _Trial(
        pod=pod,
        snapshot=snapshot,
        families=families,
        request=request,
        read=annotations.read,
        options=replace(snapshot.options, choices=snapshot.kept.choices),
        order=order,
    )
    fits, failed, newest = yield from trial.verdicts(names)
    while fits:
        best = trial.best(fits)
        placed = yield from trial.placed(best, newest)
        if isinstance(placed, PodFit):
            return FilterResult(placed=placed, failed=failed)
        failed[best] = placed  # it has changed meanwhile
        del fits[best]
    return FilterResult(placed=None, failed=failed)


def without_identity(pod: PodView, annotations: Mapping[str, str]) -> PodView:
    """The pod without what differs between pods of one owner. Nodes are judged for all of those at once."""
    containers = tuple([replace(one, env={}) if one.env else one for one in pod.containers])
    return PodView(uid="", namespace="", name="", containers=containers, annotations=annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One pod is tried on nodes. ``request`` is that of all pods like it, and ``read`` what it reads of annotations."""

    pod: PodView
    snapshot: ClusterSnapshot
    families: tuple[Family, ...]
    request: PodRequest
    read: Collection[str]
    options: CycleOptions
    order: str

    def rank(self, name: str, score: float) -> tuple[float, str]:
        """What makes a node better than another: how full it is, then its name."""
        return (-score if self.order == "spread" else score, name)

    def best(self, fits: Mapping[str, float]) -> str:
        """The node of the highest rank."""
        scores = map(neg, fits.values()) if self.order == "spread" else fits.values()
        return max(zip(scores, fits, strict=True))[1]

    def verdicts(self, names: Iterable[str]) -> Pausing[tuple[dict[str, float], dict[str, str], PodFit | None]]:
        """Where the pod fits, with the nodes' scores, and why it does not fit elsewhere. A node that is as it was for
        the last pod like this one is not worked out again. The best of those that were, with the devices there.
        """
        snapshot, pod = self.snapshot, self.pod
        own = snapshot.pods.entries.get(pod.uid)
        own_node = own.node if own else ""
        by_quota = bool(self.options.quota.limits)  # which changes with every pod: nothing would be found again
        verdicts = Verdicts() if by_quota else self._known(own_node)
        outcomes = verdicts.outcomes
        fits: dict[str, float] = {}
        failed: dict[str, str] = {}
        asked, tried, newest, highest = 0, 0, None, (-inf, "")
        remaining = iter(names)
        while part := tuple(islice(remaining, PART)):
            yield
            for name in [name for name in part if name not in outcomes]:
                yield
                node_info = node_info_for(snapshot, pod, name)
                if node_info is None:
                    outcomes[name] = UNREGISTERED
                    continue
                if asked >= MAX_ASKED:
                    failed[name] = f"not tried: {len(pod.containers)} containers were tried on {tried} nodes; {_FEWER}"
                    continue
                fit, why = yield from self._fit(self.request, node_info)
                asked, tried = asked + len(fit.steps), tried + 1
                outcomes[name] = outcome = why or self._score(node_info, fit)
                if isinstance(fit, PodFit) and not isinstance(outcome, str):
                    rank = self.rank(name, outcome)
                    newest, highest = (fit, rank) if rank > highest else (newest, highest)
            known = [name for name in part if name not in failed] if failed else part
            judged = list(map(outcomes.__getitem__, known))
            fits |= {name: one for name, one in zip(known, judged, strict=True) if not isinstance(one, str)}
            failed |= {name: one for name, one in zip(known, judged, strict=True) if isinstance(one, str)}
        outcomes.pop(own_node, None)  # it was judged as if the pod had nothing there
        if not by_quota:
            snapshot.kept.verdicts.keep(self._shape, pod.annotations, self.read, verdicts)
        return fits, failed, newest

    def _known(self, own_node: str) -> Verdicts:
        """What is known for pods like this one, and still holds. What the pod has of its own node is free for itself
        only.
        """
        snapshot = self.snapshot
        verdicts = snapshot.kept.verdicts.of(self._shape, self.pod.annotations)
        verdicts.catch_up(snapshot.changes, snapshot.pods.changes)
        verdicts.outcomes.pop(own_node, None)
        if len(verdicts) > 2 * len(snapshot.nodes):
            for name in verdicts.outcomes.keys() - snapshot.nodes.keys():
                del verdicts.outcomes[name]
        return verdicts

    def placed(self, name: str, newest: PodFit | None) -> Pausing[PodFit | str]:
        """The pod on this node as it is now, or why it does not fit. ``newest`` counts while its node is the same: what
        a pod is given follows from what all pods like it ask for.
        """
        node_info = node_info_for(self.snapshot, self.pod, name)
        if node_info is None:
            return UNREGISTERED
        if newest and newest.node_info is node_info:
            return newest
        fit, why = yield from self._fit(replace(self.request, pod=self.pod), node_info)
        return why if why or isinstance(fit, Unschedulable) else fit

    def _fit(self, request: PodRequest, node_info: NodeInfo) -> Pausing[tuple[PodFit | Unschedulable, str]]:
        fit = yield from fit_pod_pausing(request, node_info, self.options)
        if isinstance(fit, Unschedulable):
            return fit, fit.why
        wrong = count_mismatch(request.pod, fit.given, self.families)
        return fit, wrong or insufficient_ids(request.pod, node_info, self.families)

    def _score(self, node_info: NodeInfo, fit: PodFit | Unschedulable) -> float:
        given = fit.given if isinstance(fit, PodFit) else {}
        return node_score(self.request.pod, self.request.policies, node_info, given, self.order)

    @property
    def _shape(self) -> Shape:
        asked = tuple(
            [
                (one.name, one.init, one.restartable, one.privileged, *one.limits.items(), "", *one.requests.items())
                for one in self.pod.containers
            ]
        )
        return asked, self.options.order, self.order


def warm_up_pausing(snapshot: ClusterSnapshot) -> Pausing[None]:
    """Work out what pods have of each node, with pauses, so that the first filter need not."""
    for name, node_info in list(snapshot.nodes.items()):
        snapshot.kept.occupancy.of(snapshot.families, node_info, snapshot.pods.on(name))
        yield


def node_info_for(snapshot: ClusterSnapshot, pod: PodView, name: str) -> NodeInfo | None:
    """What a node has for this pod; None where no device of it is known. The same object while nothing changes."""
    known = snapshot.nodes.get(name)
    if known is None or not any(pool.states for pool in known.pools.values()):
        return None
    return snapshot.kept.occupancy.of(snapshot.families, known, snapshot.pods.on(name, without=pod.uid)).result


def simulate(snapshot: ClusterSnapshot, pod: PodView, nodes: Sequence[NodeView]) -> FilterResult | NoDemand:
    """The same for nodes that need not exist, as a cluster autoscaler asks: nobody has anything of them."""
    return run_without_pauses(simulate_pausing(snapshot, pod, nodes))


def simulate_pausing(snapshot: ClusterSnapshot, pod: PodView, nodes: Iterable[NodeView]) -> Filtering:
    """The same, with pauses."""
    offered: dict[str, NodeInfo] = {}
    for node in nodes:
        offered[node.name] = read_idle_node(node, snapshot.families).node_info
        yield
    alone = replace(snapshot, nodes=offered, pods=PodIndex(), kept=FilterCache(choices=snapshot.kept.choices))
    return (yield from filter_nodes_pausing(alone, pod, offered))
