"""Changes that would make a pod fit, each tested with the scheduler's own rules.

So every remedy works, whatever the vendor's rules are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product

from hami_plugin.cli.fit.inquiry import Inquiry
from hami_plugin.model.quantity import whole
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Quota
from hami_plugin.scheduler.engine.fit import PodFit, Step, Unschedulable
from hami_plugin.sdk import Family

MAX_TRIED = 12
"""Amounts tested for each resource, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change after which the pod fits; ``limits`` if it changes a container's limits."""

    what: str
    container: str = ""
    limits: Mapping[str, str] | None = None


def remedies(inquiry: Inquiry, unplaced: Unschedulable) -> tuple[Remedy, ...]:
    """All changes that work, the smallest first."""
    if not unplaced.steps:
        return ()
    step = unplaced.steps[-1]
    family = next(family for family in inquiry.families if family.device_type == step.context.demand.device_type)
    node = unplaced.node_info.node
    asked_less = tuple(_less(inquiry, node, step, family))
    return (
        *asked_less,
        *_whole(inquiry, node, step, family),
        *_without_annotation(inquiry, node),
        *_without_quota(inquiry, node),
        *_without_pods(inquiry, node, family),
    )


def fits(inquiry: Inquiry, node: NodeView) -> bool:
    return isinstance(inquiry.on(node), PodFit)


def _less(inquiry: Inquiry, node: NodeView, step: Step, family: Family) -> Iterator[Remedy]:
    """Less of one resource, or devices in a number that goes together; else less memory and fewer cores together."""
    container = inquiry.pod.container(step.container.name)
    if container is None:
        return
    names = family.resources
    amounts = _amounts(container, step, family)
    found = False
    for name in (names.memory, names.memory_percent, names.cores, names.count):
        tried = islice(((name, value) for value in amounts.get(name, ())), MAX_TRIED)
        if remedy := _first(inquiry, node, container, (dict([one]) for one in tried)):
            found = True
            yield remedy
    count = step.context.demand.count
    more = ({names.count: number} for number in range(count + 1, min(len(step.states), count + MAX_TRIED) + 1))
    if remedy := _first(inquiry, node, container, more):
        yield remedy
    if not found:
        pairs = product(amounts.get(names.memory, ()), amounts.get(names.cores, ()))
        both = ({names.memory: memory, names.cores: cores} for memory, cores in islice(pairs, MAX_TRIED**2))
        if remedy := _first(inquiry, node, container, both):
            yield remedy


def _whole(inquiry: Inquiry, node: NodeView, step: Step, family: Family) -> Iterator[Remedy]:
    """Whole devices, where a part is asked for."""
    container, names = inquiry.pod.container(step.container.name), family.resources
    parts = [name for name in (names.memory, names.memory_percent, names.cores) if name]
    asked = [name for name in parts if container and name in container.limits]
    if container is None or not asked:
        return
    limits = {name: text for name, text in container.limits.items() if name not in asked}
    other = replace(container, limits=limits, requests={k: v for k, v in container.requests.items() if k not in asked})
    pod = replace(inquiry.pod, containers=tuple(other if one is container else one for one in inquiry.pod.containers))
    if fits(inquiry.asking(pod), node):
        yield Remedy(what=f"if container {container.name} requests whole devices: without {' and '.join(asked)}")


def _amounts(container: ContainerView, step: Step, family: Family) -> Mapping[str, list[int]]:
    """What may be asked instead, by resource, the largest first: what a device or the quota has left; fewer devices."""
    names, factor = family.resources, max(1, family.resources.memory_factor)
    count, quota = step.context.demand.count, step.context.quota
    memory = {state.free_memory // factor for state in step.states}
    memory |= {(limit * factor - used) // factor // count for limit, used in _left(quota, names.memory)}
    cores = {family.resources.core_count(max(0, state.free_cores)) for state in step.states}
    cores |= {(limit - used) // count for limit, used in _left(quota, names.cores)}
    percents = {state.free_memory * 100 // state.info.devmem for state in step.states if state.info.devmem}
    asks_percent = names.memory_percent in container.limits
    return {
        names.memory: [] if asks_percent else _below(container, names.memory, memory),
        names.memory_percent: _below(container, names.memory_percent, percents) if asks_percent else [],
        names.cores: _below(container, names.cores, cores),
        names.count: list(range(count - 1, 0, -1)),
    }


def _left(quota: Quota, resource: str) -> list[tuple[int, int]]:
    """The limit and what is used of it, if there is a limit."""
    return [(quota.limits[resource], quota.used.get(resource, 0))] if resource in quota.limits else []


def _below(container: ContainerView, name: str, values: set[int]) -> list[int]:
    text = container.limits.get(name)
    most = whole(text) if text is not None else None
    return sorted((value for value in values if value > 0 and (most is None or value < most)), reverse=True)


def _first(
    inquiry: Inquiry, node: NodeView, container: ContainerView, changes: Iterator[Mapping[str, int]]
) -> Remedy | None:
    for change in changes:
        limits = {name: str(value) for name, value in change.items() if name}
        if limits and fits(inquiry.asking(_changed(inquiry.pod, container, limits)), node):
            return Remedy(what=_description(container, limits), container=container.name, limits=limits)
    return None


def _changed(pod: PodView, container: ContainerView, limits: Mapping[str, str]) -> PodView:
    other = replace(container, limits={**container.limits, **limits})
    return replace(pod, containers=tuple(other if one is container else one for one in pod.containers))


def _description(container: ContainerView, limits: Mapping[str, str]) -> str:
    parts = [
        f"{name}: {value} instead of {container.limits[name]}" if name in container.limits else f"{name}: {value}"
        for name, value in limits.items()
    ]
    return f"if container {container.name} requests {' and '.join(parts)}"


def _without_annotation(inquiry: Inquiry, node: NodeView) -> Iterator[Remedy]:
    for key, text in inquiry.pod.annotations.items():
        rest = {other: value for other, value in inquiry.pod.annotations.items() if other != key}
        if fits(inquiry.asking(replace(inquiry.pod, annotations=rest)), node):
            yield Remedy(what=f"without the pod's annotation {key}: {text}")


def _without_quota(inquiry: Inquiry, node: NodeView) -> Iterator[Remedy]:
    if inquiry.hard and fits(replace(inquiry, hard={}), node):
        yield Remedy(what=f"with a larger quota of namespace {inquiry.pod.namespace}")


def _without_pods(inquiry: Inquiry, node: NodeView, family: Family) -> Iterator[Remedy]:
    """One pod less; if that is not enough, all of them less."""
    holders = [pod.key for pod in inquiry.pods if pod.annotations.get(family.annotations.allocated)]
    single = [key for key in holders if fits(inquiry.without([key]), node)]
    for key in single:
        yield Remedy(what=f"once pod {key} has ended")
    if holders and not single and fits(inquiry.without(holders), node):
        yield Remedy(what=f"once the other pods with {family.resources.count} on this node have ended")
