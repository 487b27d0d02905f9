"""A kubelet's topology manager: which NUMA nodes a container's devices and CPUs come from, or that it fails.

Each resource with NUMA nodes gives hints, sets of nodes that could serve the request. One is taken of each, and the
best intersection decides. It is chosen before a plugin is asked, by the number of free ids alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

Nodes = frozenset[int]
Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """These NUMA nodes could serve a request. ``preferred``: it never takes fewer."""

    nodes: Nodes
    preferred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """What the manager decided for a container. ``nodes`` is None where any will do."""

    nodes: Nodes | None
    admitted: bool


def hints(listed: Mapping[str, int | None], free: Collection[str], count: int, known: Nodes) -> list[Hint] | None:
    """The hints for ``count`` of the ids ``listed`` with their nodes; None where no id has one.

    A node that the machine does not have is left out, as the kubelet does since 1.36.
    """
    if all(node is None for node in listed.values()):
        return None
    of_all, of_free = _counts(listed, listed), _counts(listed, free)
    masks = list(_subsets(known.intersection(of_all) or known))
    enough = [len(mask) for mask in masks if sum(of_all.get(node, 0) for node in mask) >= count]
    least = min(enough, default=len(known))
    return [
        Hint(nodes=mask, preferred=len(mask) == least)
        for mask in masks
        if sum(of_free.get(node, 0) for node in mask) >= count
    ]


def merged(wishes: Sequence[Sequence[Hint] | None], known: Nodes, policy: Policy) -> Affinity:
    """The best of all ways to take one hint of each resource. None is a resource that does not care."""
    if policy == "none":
        return Affinity(nodes=None, admitted=True)
    caring = [list(wish) for wish in wishes if wish is not None]
    impossible = any(not wish for wish in caring)
    if policy == "single-numa-node":
        caring = [[hint for hint in wish if len(hint.nodes) == 1 and hint.preferred] for wish in caring]
        impossible = impossible or any(not wish for wish in caring)
    caring = [wish for wish in caring if wish]
    most = max((min(len(hint.nodes) for hint in wish) for wish in caring), default=0)
    best = Hint(nodes=known, preferred=not caring)
    found = [one for chosen in product(*caring) if (one := _intersection(chosen)).nodes] if caring else []
    if found:
        best = min(found, key=lambda hint: _rank(hint, most))
    preferred = best.preferred and not impossible
    admitted = preferred or policy == "best-effort"
    anywhere = best.nodes == known and policy == "single-numa-node"
    return Affinity(nodes=None if anywhere or impossible else best.nodes, admitted=admitted)


def _intersection(chosen: Sequence[Hint]) -> Hint:
    nodes = frozenset.intersection(*(hint.nodes for hint in chosen))
    same = all(hint.nodes == chosen[0].nodes for hint in chosen)
    return Hint(nodes=nodes, preferred=same and all(hint.preferred for hint in chosen))


def _rank(hint: Hint, most: int) -> tuple[bool, int, int, int]:
    """Preferred ones first, the narrowest of them first. Of the others those that are as wide as the resource that
    needs most nodes, then narrower ones, then wider ones. Among equals, those with the lowest nodes.
    """
    width = len(hint.nodes)
    if hint.preferred:
        order = (0, width)
    elif width <= most:
        order = (0, most - width)
    else:
        order = (1, width)
    return (not hint.preferred, *order, sum(1 << node for node in hint.nodes))


def _counts(listed: Mapping[str, int | None], ids: Collection[str]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for one in ids:
        if (node := listed.get(one)) is not None:
            counts[node] = counts.get(node, 0) + 1
    return counts


def _subsets(nodes: Nodes) -> Iterator[Nodes]:
    """All but the empty one."""
    ordered = sorted(nodes)
    for size in range(1, len(ordered) + 1):
        yield from map(frozenset, combinations(ordered, size))
