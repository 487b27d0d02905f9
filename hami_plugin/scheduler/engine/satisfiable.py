"""Could any node ever give this? A request is held against the devices that nodes have, as if nobody used them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.quantity import whole
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.fit import Policy, trial
from hami_plugin.scheduler.engine.pods import Site
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.requests import Demand
from hami_plugin.scheduler.engine.states import WHOLE, Context, DeviceState, Given
from hami_plugin.sdk import Family

Shape = tuple[Hashable, ...]
Largest = tuple[int, str]
"""How much, and on which node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is largest of one family: a device's memory, a device's cores, and how many devices a node has.

    ``again``: some device serves one container twice. ``shapes`` are nodes' devices, of alike nodes one example.
    """

    memory: Largest
    cores: Largest
    devices: Largest
    again: bool
    shapes: Mapping[Shape, Sequence[DeviceState]]

    def beside(self, other: Sizes) -> Sizes:
        """What is largest of both."""
        return Sizes(
            memory=max(self.memory, other.memory),
            cores=max(self.cores, other.cores),
            devices=max(self.devices, other.devices),
            again=self.again or other.again,
            shapes=self.shapes if self.shapes.keys() >= other.shapes.keys() else {**self.shapes, **other.shapes},
        )


def sizes(site: Site, families: Iterable[Family]) -> Mapping[str, Sizes]:
    """One node's, by family word. To be read once for each change of the node."""
    found: dict[str, Sizes] = {}
    for family in families:
        stock = site.stocks.get(family.device_type)
        if stock is None or not stock.states or family.rules.policy is None:
            continue
        name, infos = site.node.name, [state.info for state in stock.states]
        shape = tuple((info.type, info.devmem, info.devcore, info.count, info.mode) for info in infos)
        found[family.device_type] = Sizes(
            memory=(max(info.devmem for info in infos), name),
            cores=(max(info.devcore for info in infos), name),
            devices=(len(infos), name),
            again=any(map(family.rules.policy.again, stock.states)),
            shapes={shape: stock.states},
        )
    return found


def largest(nodes: Iterable[Mapping[str, Sizes]]) -> Mapping[str, Sizes]:
    """All nodes' together."""
    found: dict[str, Sizes] = {}
    for node in nodes:
        for device_type, one in node.items():
            found[device_type] = found[device_type].beside(one) if device_type in found else one
    return found


def impossible(pod: PodView, families: Iterable[Family], most: Mapping[str, Sizes]) -> str:
    """Why every known node is too small for a container of the pod, whatever ends on it; empty when one is not.

    Only sizes count: a missing model may come, and a sick device may heal. A family of which no device is known at all
    may have its first node tomorrow, so it refuses nothing.
    """
    for family in families:
        if family.rules.policy is None or family.device_type not in most:
            continue
        question = _Question(pod=pod, family=family, policy=family.rules.policy, most=most[family.device_type])
        for container in pod.containers:
            asked = family.rules.policy.request(container)
            if isinstance(asked, Demand) and (why := question.too_large(container, asked)):
                return why
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One pod, one family. Alike containers are held against the nodes' devices once."""

    pod: PodView
    family: Family
    policy: Policy
    most: Sizes
    tried: dict[Hashable, bool] = field(default_factory=dict)

    def too_large(self, container: ContainerView, demand: Demand) -> str:
        names = self.family.resources
        memory, node = self.most.memory
        if demand.memory is not None and demand.memory > memory:
            return _told(container, names.memory, f"{demand.memory} MiB", f"{memory} MiB, on node {node}", "device")
        if not self.family.resources.cores_are_bits and not self.family.resources.cores_are_counted:
            cores, node = self.most.cores
            if demand.cores > cores and not self._cores_do(demand):
                return _told(container, names.cores, str(demand.cores), f"{cores}, on node {node}", "device")
        devices, node = self.most.devices
        if demand.count > devices and not self.most.again:
            return _told(
                container, names.count, f"{demand.count} devices", f"{devices} devices, on node {node}", "node"
            )
        return ""

    def _cores_do(self, demand: Demand) -> bool:
        """Whether a percentage is enough for the family's rules where devices have a number of cores, if one were
        well.
        """
        if demand.cores > WHOLE:
            return False
        key = (demand.count, demand.memory, demand.percent, demand.cores)
        if key not in self.tried:
            context = Context(demand=demand, pod=self.pod)
            self.tried[key] = any(_cores_do(self.policy, context, states) for states in self.most.shapes.values())
        return self.tried[key]


def _cores_do(policy: Policy, context: Context, states: Sequence[DeviceState]) -> bool:
    tried = trial(policy, context.among(states))
    well = [replace(state, info=replace(state.info, health=True)) for state in states]
    return any(tried(state, ()) is not Reason.NO_CORES for state in well)


def _told(container: ContainerView, resource: str, asked: str, most: str, of: str) -> str:
    return (
        f"container {container.name}: {resource or 'the request'} asks for {asked}, more than any {of} of this cluster"
        f" has (the largest: {most}); lower it, or add a larger {of} first"
    )


NATIVE = "kubernetes.io/"
"""Part of the names of resources that are the kubelet's own, as is every name without a slash."""


def named(family: Family) -> frozenset[str]:
    """The resources by which containers ask for the family's devices."""
    names = family.resources
    every = (names.count, names.memory, names.memory_percent, names.cores, *(one.resource for one in names.units))
    return frozenset(name for name in every if name)


def without_device(pod: PodView, families: Sequence[Family]) -> str:
    """Which container asks for a device's memory or cores, and for no device; empty where none does.

    It would be given none. Where the kubelet counts that resource, its daemon would be asked for what nobody decided.
    """
    for container in pod.containers:
        asked = {name for name in (*container.limits, *container.requests) if container.amount(name) > 0}
        if not asked:
            continue
        ours = [family for family in families if family.rules.policy and asked & named(family)]
        wanting = [one for one in ours if one.rules.policy and one.rules.policy.request(container) is not None]
        lone = asked & frozenset().union(*map(named, ours)) - frozenset().union(*map(named, wanting))
        if lone:
            resource = min(lone)
            counts = sorted({family.resources.count for family in ours if resource in named(family)})
            return f"container {container.name} asks for {resource}, and for no {' or '.join(counts)}"
    return ""


def miscounted(pod: PodView, given: Given, families: Iterable[Family]) -> str:
    """Where the kubelet would count something else than was decided; empty where it counts the same.

    Beside devices it counts some families' memory and cores, by what a container writes: the daemon is asked for so
    many, and hands out what was decided, or nothing.
    """
    for family in families:
        for container, piece in zip(pod.containers, given.get(family.device_type, ()), strict=False):
            for units in family.resources.units if piece else ():
                counted, decided = container.amount(units.resource), sum(map(units.of_grant, piece))
                if counted and counted != decided:
                    return (
                        f"container {container.name} asks for {counted} {units.resource} in all and its "
                        f"{len(piece)} {family.resources.count} come to {decided}"
                    )
    return ""


def lacking(pod: PodView, node: NodeView, families: Iterable[Family]) -> str:
    """Which resource of no family the node does not offer enough of, as kube-scheduler would find; empty where none."""
    foreign = frozenset().union(*map(_extended, pod.containers)) - frozenset().union(*map(named, families))
    offered = node.allocatable or node.capacity
    for resource, wanted in sorted(most(pod, foreign).items()):
        there = _units(offered.get(resource, "0"))
        if wanted > there:
            has = f"has {there}" if resource in offered else "offers none"
            return f"Insufficient {resource}: {wanted} asked for; node {node.name} {has}"
    return ""


def exhausted(pod: PodView, site: Site, families: Iterable[Family]) -> str:
    """Of which resource the kubelet has fewer ids left than the pod takes; empty where none is known.

    By the devices there may be room: those that init containers had are free once they are over, and their ids are
    not.
    """
    if not site.kept:
        return ""
    offered = site.node.allocatable or site.node.capacity
    for resource, wanted in sorted(most(pod, kubelets(families)).items()):
        kept = site.kept.get(resource, 0)
        if resource in offered and wanted + kept > (there := _units(offered[resource])):
            return (
                f"Insufficient {resource}: {wanted} asked for; node {site.node.name} has {there}, of which pods keep "
                f"{kept}, those of init containers that are over among them"
            )
    return ""


def kubelets(families: Iterable[Family]) -> frozenset[str]:
    """The resources by which kubelets count these families."""
    resources = [family.resources for family in families]
    return frozenset(name for one in resources for name in (one.count, *(unit.resource for unit in one.units)))


def most(pod: PodView, names: frozenset[str]) -> Counter[str]:
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
