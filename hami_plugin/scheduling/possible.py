"""Could any node ever give this? A request is held against the devices that nodes have, as if nobody used them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.policy.charges import WHOLE
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.engine import Policy, trial
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.sites import Site, Stock
from hami_plugin.policy.states import Context
from hami_plugin.vendor import Family


def impossible(pod: PodView, families: Iterable[Family], sites: Sequence[Site]) -> str:
    """Why every known node is too small for a container of the pod, whatever ends on it; empty when one is not.

    Only sizes count: a missing model may come, and a sick device may heal. A family of which no device is known at all
    may have its first node tomorrow, so it refuses nothing.
    """
    for family in families:
        stocks = [(site.node.name, site.stocks[family.word]) for site in sites if family.word in site.stocks]
        there = [(name, stock) for name, stock in stocks if stock.states]
        if family.policy is None or not there:
            continue
        for container in pod.containers:
            asked = family.policy.request(container)
            if isinstance(asked, Demand) and (why := _too_large(pod, container, asked, family, there)):
                return why
    return ""


def _too_large(
    pod: PodView, container: ContainerView, demand: Demand, family: Family, there: Sequence[tuple[str, Stock]]
) -> str:
    names = family.resources
    assert family.policy
    if demand.memory is not None:
        most, node = max((state.info.devmem, name) for name, stock in there for state in stock.states)
        if demand.memory > most:
            return _told(container, names.memory, f"{demand.memory} MiB", f"{most} MiB, on node {node}", "device")
    if not family.cores_are_bits and not family.cores_are_counted:
        most, node = max((state.info.devcore, name) for name, stock in there for state in stock.states)
        if demand.cores > most and not _cores_do(family.policy, Context(demand=demand, pod=pod), there):
            return _told(container, names.cores, str(demand.cores), f"{most}, on node {node}", "device")
    if any(family.policy.again(state) for _name, stock in there for state in stock.states):
        return ""
    most, node = max((len(stock.states), name) for name, stock in there)
    if demand.count > most:
        return _told(container, names.count, f"{demand.count} devices", f"{most} devices, on node {node}", "node")
    return ""


def _cores_do(policy: Policy, context: Context, there: Sequence[tuple[str, Stock]]) -> bool:
    """Whether a percentage is enough for the family's rules where devices have a number of cores, if one were well."""
    if context.demand.cores > WHOLE:
        return False
    for _name, stock in there:
        tried = trial(policy, context.among(stock.states))
        well = [replace(state, info=replace(state.info, health=True)) for state in stock.states]
        if any(tried(state, ()) is not Reason.NO_CORES for state in well):
            return True
    return False


def _told(container: ContainerView, resource: str, asked: str, most: str, of: str) -> str:
    return (
        f"container {container.name}: {resource or 'the request'} asks for {asked}, more than any {of} of this cluster"
        f" has (the largest: {most}); lower it, or add a larger {of} first"
    )
