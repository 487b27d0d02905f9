"""A namespace's limits of devices, what its pods use of them, and whether one more pod is covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hami_plugin.model.views import PodView, whole
from hami_plugin.scheduler.engine.devices import Demand, Invalid, PodAllocation, Quota, effective_holding
from hami_plugin.scheduler.engine.fit import Demands, pod_demands
from hami_plugin.scheduler.engine.node_info import pod_allocations, scheduling_policies
from hami_plugin.sdk import Family

PREFIX = "limits."
"""A ResourceQuota's key is this and a resource. ``requests.<resource>`` is Kubernetes' own business."""


def quota(namespace: str, hard: Mapping[str, str], families: Sequence[Family], pods: Iterable[PodView]) -> Quota:
    """A namespace's quota of ``limits.<resource>``, and what its pods use. ValueError if a limit is no quantity."""
    there = [pod for pod in pods if pod.namespace == namespace and not pod.terminal]
    problems: list[str] = []  # of annotations that cannot be read; ``read_node`` reports them
    return Quota(
        limits=limits([hard], families),
        used=used(families, [pod_allocations(pod, families, problems) for pod in there]),
    )


def limits(hards: Iterable[Mapping[str, str]], families: Sequence[Family]) -> Mapping[str, int]:
    """What the ``spec.hard`` of all ResourceQuotas of a namespace allow: the least of each resource that families name.

    ValueError if a limit is no quantity.
    """
    names = managed(families)
    found: dict[str, int] = {}
    for hard in hards:
        for key, text in hard.items():
            name = key.removeprefix(PREFIX)
            if key.startswith(PREFIX) and name in names:
                limit = whole(text)
                found[name] = min(limit, found.get(name, limit))
    return found


def managed(families: Iterable[Family]) -> frozenset[str]:
    """The resources of which a namespace can have a quota here: memory and cores of each family."""
    return frozenset(name for family in families for name in _names(family) if name)


def used(families: Iterable[Family], pods: Iterable[Mapping[str, PodAllocation]]) -> Mapping[str, int]:
    """How much of each resource these pods have, in MiB and cores."""
    total: Counter[str] = Counter()
    there = list(pods)
    for family in families:
        if family.rules.policy is None:
            continue
        memory, cores = _names(family)
        for holding in (one[family.resources.device_type] for one in there if family.resources.device_type in one):
            for grant in effective_holding(holding, family.rules.policy.request, bits=family.resources.cores_are_bits):
                total.update({memory: grant.memory, cores: family.resources.core_count(grant.cores)})
    return {name: amount for name, amount in total.items() if name}


def excess(pod: PodView, families: Sequence[Family], quota: Quota) -> str:
    """What of a quota is not enough for the pod, before it is known which devices it gets; empty when it may do.

    A percentage of a device's memory counts for nothing yet.
    """
    wanted = pod_demands(pod, scheduling_policies(families))
    return str(wanted) if isinstance(wanted, Invalid) else beyond(pod, wanted, families, quota)


def beyond(pod: PodView, wanted: Demands, families: Sequence[Family], quota: Quota) -> str:
    """The same of what the pod is known to ask for."""
    types = {device_type for one in wanted for device_type in one}
    for family in (family for family in families if family.resources.device_type in types):
        needed = _most(pod, wanted, family.resources.device_type)
        for name, amount, factor in zip(_names(family), needed, (family.resources.memory_factor, 1), strict=True):
            if any(needed) and not quota.allows(name, amount, factor):
                taken, limit = quota.used.get(name, 0), quota.limits[name] * max(1, factor)
                return f"{PREFIX}{name}: the pod needs {amount}, and {taken} of {limit} are used"
    return ""


def _most(pod: PodView, wanted: Demands, device_type: str) -> tuple[int, int]:
    """The most memory and cores of a family at any time: init containers run alone beside the sidecars before them."""
    memory = cores = most_memory = most_cores = 0
    for container, asked in zip(pod.containers, wanted, strict=True):
        more_memory, more_cores = _sizes(asked.get(device_type))
        most_memory, most_cores = max(most_memory, memory + more_memory), max(most_cores, cores + more_cores)
        if not container.alone:
            memory, cores = memory + more_memory, cores + more_cores
    return most_memory, most_cores


def _sizes(demand: Demand | None) -> tuple[int, int]:
    return (0, 0) if demand is None else (demand.count * (demand.memory or 0), demand.count * demand.cores)


def _names(family: Family) -> tuple[str, str]:
    return family.resources.memory, family.resources.cores
