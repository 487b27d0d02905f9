"""Between Kubernetes objects and whole-pod decisions: what a node has and lacks, and how a decision is written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_plugin.errors import WireError
from hami_plugin.model.links import NO_LINKS, Link, Links, symmetric
from hami_plugin.model.quantity import whole
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.policy.admission import Denied
from hami_plugin.policy.pods import Placed, Rules, Site, Stock
from hami_plugin.policy.states import Quota, idle
from hami_plugin.policy.usage import Holding, held
from hami_plugin.policy.usage import used as in_use
from hami_plugin.vendor import Family
from hami_plugin.wire.keys import ASSIGNED_NODE
from hami_plugin.wire.nodes import decode_scores
from hami_plugin.wire.pods import decode_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What a node has, and the annotations that could not be read."""

    site: Site
    problems: tuple[str, ...] = ()


def rules(families: Iterable[Family]) -> Rules:
    """The families that can be scheduled, by word."""
    return {family.word: family.policy for family in families if family.policy}


def admitted(pod: PodView, families: Sequence[Family]) -> PodView | Denied:
    """The pod as it is stored after admission: with defaults that families fill in."""
    containers: list[ContainerView] = []
    annotations = dict(pod.annotations)
    for container in pod.containers:
        seen = container
        for family in families:
            answer = family.admit(seen, replace(pod, annotations=annotations))
            if isinstance(answer, Denied):
                return answer
            limits, requests = {**seen.limits, **answer.limits}, {**seen.requests, **answer.requests}
            seen = replace(seen, limits=limits, requests=requests, env={**seen.env, **answer.env})
            annotations |= answer.pod_annotations
        containers.append(seen)
    return replace(pod, annotations=annotations, containers=tuple(containers))


def quota(namespace: str, hard: Mapping[str, str], families: Sequence[Family], pods: Iterable[PodView]) -> Quota:
    """A namespace's quota of ``limits.<resource>``, and what its pods use. ValueError if a limit is no quantity."""
    there = [pod for pod in pods if pod.namespace == namespace and not pod.terminal]
    limits: dict[str, int] = {}
    used: Counter[str] = Counter()
    for family in families:
        names = (family.resources.memory, family.resources.cores)
        limits |= {name: whole(hard[f"limits.{name}"]) for name in names if f"limits.{name}" in hard}
        if family.policy is None or not limits.keys() & {*names}:
            continue
        for holding in _holdings(family, there, []):
            for grant in held(holding, family.policy.request):
                used.update({names[0]: grant.memory, names[1]: grant.cores})
    return Quota(limits=limits, used=used)


def survey(node: NodeView, families: Sequence[Family], pods: Iterable[PodView]) -> Surveyed:
    """The node's devices, less what these pods have of them. Pods of other nodes and finished ones have nothing."""
    here = [pod for pod in pods if node.name in (pod.node, pod.annotations.get(ASSIGNED_NODE)) and not pod.terminal]
    problems: list[str] = []
    stocks: dict[str, Stock] = {}
    for family in families:
        try:
            holdings = _holdings(family, here, problems)
            stocks[family.word] = stock(node, family, holdings)
        except WireError as error:
            problems.append(f"node {node.name}, {family.word}: {error}")
    return Surveyed(site=Site(node=node, stocks=stocks), problems=tuple(problems))


def stock(node: NodeView, family: Family, holdings: Iterable[Holding]) -> Stock:
    """The node's devices of one family, less what is held. WireError when an annotation of the node is damaged."""
    states = tuple(idle(info) for info in family.node_devices(node))
    if family.policy is None or not states:
        return Stock(states=states)
    states = in_use(states, holdings, family.policy.request, family.policy.restore)
    return Stock(states=states, links=_links(node, family.annotations.score))


def patch(families: Iterable[Family], pod: PodView, placed: Placed) -> Mapping[str, str]:
    """What is written to the pod beside the time: its node, and each family's part, one entry for each container."""
    written = {ASSIGNED_NODE: placed.site.node.name}
    decided = replace(pod, annotations={**pod.annotations, **written})
    for family in families:
        if family.word in placed.given:
            written |= family.patch(family, decided, placed.given)
    return written


def _holdings(family: Family, pods: Iterable[PodView], problems: list[str]) -> list[Holding]:
    found: list[Holding] = []
    for pod in pods:
        try:
            pieces = decode_devices(pod.annotations.get(family.annotations.allocated, ""))
        except WireError as error:
            problems.append(f"pod {pod.key}, {family.annotations.allocated}: {error}")
            continue
        found.append(Holding(pod=pod, pieces=pieces))
    return [holding for holding in found if any(holding.pieces)]


def _links(node: NodeView, key: str) -> Links:
    text = node.annotations.get(key, "") if key else ""
    if not text:
        return NO_LINKS
    scores = decode_scores(text)
    return symmetric(
        {(a, b): Link(score=score, label="") for a, peers in scores.items() for b, score in peers.items() if a != b}
    )
