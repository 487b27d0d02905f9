"""Could any node ever give this? A request is held against the devices that nodes have, as if nobody used them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.scheduler.engine.devices import WHOLE, Context, Demand, DeviceState, NodeInfo, Reason
from hami_plugin.scheduler.engine.fit import device_checker
from hami_plugin.scheduler.engine.policy import Policy
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


def sizes(node_info: NodeInfo, families: Iterable[Family]) -> Mapping[str, Sizes]:
    """One node's, by device type. To be read once for each change of the node."""
    found: dict[str, Sizes] = {}
    for family in families:
        pool = node_info.pools.get(family.resources.device_type)
        if pool is None or not pool.states or family.rules.policy is None:
            continue
        name, infos = node_info.node.name, [state.info for state in pool.states]
        shape = tuple((info.type, info.devmem, info.devcore, info.count, info.mode) for info in infos)
        found[family.resources.device_type] = Sizes(
            memory=(max(info.devmem for info in infos), name),
            cores=(max(info.devcore for info in infos), name),
            devices=(len(infos), name),
            again=any(map(family.rules.policy.again, pool.states)),
            shapes={shape: pool.states},
        )
    return found


def largest(nodes: Iterable[Mapping[str, Sizes]]) -> Mapping[str, Sizes]:
    """All nodes' together."""
    found: dict[str, Sizes] = {}
    for node in nodes:
        for device_type, one in node.items():
            found[device_type] = found[device_type].beside(one) if device_type in found else one
    return found


def why_impossible(pod: PodView, families: Iterable[Family], most: Mapping[str, Sizes]) -> str:
    """Why every known node is too small for a container of the pod, whatever ends on it; empty when one is not.

    Only sizes count: a missing model may come, and a sick device may heal. A family of which no device is known at all
    may have its first node tomorrow, so it refuses nothing.
    """
    for family in families:
        if family.rules.policy is None or family.resources.device_type not in most:
            continue
        question = _Question(
            pod=pod, family=family, policy=family.rules.policy, most=most[family.resources.device_type]
        )
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
            return _too_large(
                container, names.memory, f"{demand.memory} MiB", f"{memory} MiB, on node {node}", "device"
            )
        if not self.family.resources.cores_are_bits and not self.family.resources.cores_are_counted:
            cores, node = self.most.cores
            if demand.cores > cores and not self._cores_do(demand):
                return _too_large(container, names.cores, str(demand.cores), f"{cores}, on node {node}", "device")
        devices, node = self.most.devices
        if demand.count > devices and not self.most.again:
            return _too_large(
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
    tried = device_checker(policy, context.among(states))
    well = [replace(state, info=replace(state.info, health=True)) for state in states]
    return any(tried(state, ()) is not Reason.NO_CORES for state in well)


def _too_large(container: ContainerView, resource: str, asked: str, most: str, of: str) -> str:
    return (
        f"container {container.name}: {resource or 'the request'} asks for {asked}, more than any {of} of this cluster"
        f" has (the largest: {most}); lower it, or add a larger {of} first"
    )
