"""What the kubelet counts of a pod: resources by name, beside the devices that were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hami_plugin.model.views import ContainerView, NodeView, PodView, whole
from hami_plugin.process.concurrency import Pausing, run_without_pauses
from hami_plugin.scheduler.engine.devices import Given, NodeInfo
from hami_plugin.sdk import Family

NATIVE = "kubernetes.io/"
"""Part of the names of resources that are the kubelet's own, as is every name without a slash."""


def resource_names(family: Family) -> frozenset[str]:
    """The resources by which containers ask for the family's devices."""
    names = family.resources
    every = (names.count, names.memory, names.memory_percent, names.cores, *(one.resource for one in names.units))
    return frozenset(name for name in every if name)


def shares_without_device(pod: PodView, families: Sequence[Family]) -> str:
    """Which container asks for a device's memory or cores, and for no device; empty where none does.

    It would be given none. Where the kubelet counts that resource, its daemon would be asked for what nobody decided.
    """
    return run_without_pauses(shares_without_device_pausing(pod, families))


def shares_without_device_pausing(pod: PodView, families: Sequence[Family]) -> Pausing[str]:
    """The same, with a pause after each container."""
    for container in pod.containers:
        if lone := _without_device(container, families):
            return lone
        yield
    return ""


def _without_device(container: ContainerView, families: Sequence[Family]) -> str:
    asked = {name for name in (*container.limits, *container.requests) if container.amount(name) > 0}
    if not asked:
        return ""
    ours = [family for family in families if family.rules.policy and asked & resource_names(family)]
    wanting = [one for one in ours if one.rules.policy and one.rules.policy.request(container) is not None]
    lone = asked & frozenset().union(*map(resource_names, ours)) - frozenset().union(*map(resource_names, wanting))
    if not lone:
        return ""
    resource = min(lone)
    counts = sorted({family.resources.count for family in ours if resource in resource_names(family)})
    return f"container {container.name} asks for {resource}, and for no {' or '.join(counts)}"


def count_mismatch(pod: PodView, given: Given, families: Iterable[Family]) -> str:
    """Where the kubelet would count something else than was decided; empty where it counts the same.

    Beside devices it counts some families' memory and cores, by what a container writes: the daemon is asked for so
    many, and hands out what was decided, or nothing.
    """
    for family in families:
        for container, piece in zip(pod.containers, given.get(family.resources.device_type, ()), strict=False):
            for units in family.resources.units if piece else ():
                counted, decided = container.amount(units.resource), sum(map(units.of_grant, piece))
                if counted and counted != decided:
                    return (
                        f"container {container.name} asks for {counted} {units.resource} in all and its "
                        f"{len(piece)} {family.resources.count} come to {decided}"
                    )
    return ""


def insufficient_other(pod: PodView, node: NodeView, families: Iterable[Family]) -> str:
    """Which resource of no family the node does not offer enough of, as kube-scheduler would find; empty where none."""
    foreign = frozenset().union(*map(_extended, pod.containers)) - frozenset().union(*map(resource_names, families))
    offered = node.allocatable or node.capacity
    for resource, wanted in sorted(peak_requests(pod, foreign).items()):
        there = _units(offered.get(resource, "0"))
        if wanted > there:
            has = f"has {there}" if resource in offered else "offers none"
            return f"Insufficient {resource}: {wanted} asked for; node {node.name} {has}"
    return ""


def insufficient_ids(pod: PodView, node_info: NodeInfo, families: Iterable[Family]) -> str:
    """Of which resource the kubelet has fewer ids left than the pod takes; empty where none is known.

    By the devices there may be room: those that init containers had are free once they are over, and their ids are
    not.
    """
    if not node_info.kept:
        return ""
    offered = node_info.node.allocatable or node_info.node.capacity
    for resource, wanted in sorted(peak_requests(pod, counted_resources(families)).items()):
        kept = node_info.kept.get(resource, 0)
        if resource in offered and wanted + kept > (there := _units(offered[resource])):
            return (
                f"Insufficient {resource}: {wanted} asked for; node {node_info.node.name} has {there}, of which pods "
                f"keep {kept}, those of init containers that are over among them"
            )
    return ""


def counted_resources(families: Iterable[Family]) -> frozenset[str]:
    """The resources by which kubelets count these families."""
    resources = [family.resources for family in families]
    return frozenset(name for one in resources for name in (one.count, *(unit.resource for unit in one.units)))


def peak_requests(pod: PodView, names: frozenset[str]) -> Counter[str]:
    """Of each of these resources the most that is asked for at a time: sidecars run on, plain init containers end."""
    running: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in pod.containers:
        asked = Counter({name: container.amount(name) for name in names if container.amount(name) > 0})
        if container.alone:
            peak |= running + asked
        else:
            running += asked
    return peak | running


def _extended(container: ContainerView) -> frozenset[str]:
    names = (*container.limits, *container.requests)
    return frozenset(name for name in names if "/" in name and NATIVE not in name)


def _units(text: str) -> int:
    try:
        return whole(text)
    except ValueError:
        return 0
