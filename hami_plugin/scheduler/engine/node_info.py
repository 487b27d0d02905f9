"""What a node has and lacks: its devices as registered, less what pods have of them, and whether its daemons live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hami_plugin.errors import WireError
from hami_plugin.model.device import NO_LINKS, PairScores
from hami_plugin.model.views import NodeView, PodView, whole
from hami_plugin.protocol.grammar import in_range, printable
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import (
    DeviceInfo,
    decode_legacy,
    decode_scores,
    is_question,
    liveness,
    refusal_of,
    render_question,
    unhealthy_indices,
)
from hami_plugin.protocol.pods import SEPARATORS, decode_devices
from hami_plugin.scheduler.engine.devices import DevicePool, NodeInfo, PodAllocation, Slice, idle_state
from hami_plugin.scheduler.engine.devices import subtract_holdings as in_use
from hami_plugin.scheduler.engine.fit import Policies
from hami_plugin.scheduler.engine.node_resources import counted_resources, peak_requests
from hami_plugin.sdk import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What a node has, and the annotations that could not be read."""

    node_info: NodeInfo
    problems: tuple[str, ...] = ()


def scheduling_policies(families: Iterable[Family]) -> Policies:
    """The families that can be scheduled, by device type."""
    return {family.resources.device_type: family.rules.policy for family in families if family.rules.policy}


def requested_families(pod: PodView, families: Iterable[Family]) -> tuple[Family, ...]:
    """The families of which a container of the pod names a resource: no other is asked for anything."""
    names = {name for container in pod.containers for name in (*container.limits, *container.requests)}
    found = []
    for family in families:
        own = family.resources
        if not names.isdisjoint(
            (own.count, own.memory, own.memory_percent, own.cores, *[units.resource for units in own.units])
        ):
            found.append(family)
    return tuple(found)


def read_node(node: NodeView, families: Sequence[Family], pods: Iterable[PodView]) -> NodeReading:
    """The node's devices, less what these pods have of them. Pods of other nodes and finished ones have nothing."""
    problems: list[str] = []
    held = [pod_allocations(pod, families, problems) for pod in pods if node_of(pod) == node.name and not pod.terminal]
    idle_site = read_idle_node(node, families)
    return NodeReading(
        node_info=subtract_held(idle_site.node_info, families, held), problems=(*problems, *idle_site.problems)
    )


def node_of(pod: PodView) -> str:
    """The node of a pod. One that is bound is where it is, whatever its author has written."""
    return pod.node or pod.annotations.get(ASSIGNED_NODE, "")


def read_idle_node(node: NodeView, families: Iterable[Family]) -> NodeReading:
    """The node's devices, as if nobody had anything of them. It only changes with the node, so it can be kept."""
    problems: list[str] = []
    pools: dict[str, DevicePool] = {}
    for family in families:
        try:
            idle_stock = _idle(node, family)
        except WireError as error:
            problems.append(f"node {node.name}, {family.resources.device_type}: {error}")
            continue
        if idle_stock.states:
            pools[family.resources.device_type] = idle_stock
    return NodeReading(node_info=NodeInfo(node=node, pools=pools), problems=tuple(problems))


def subtract_held(
    node_info: NodeInfo, families: Sequence[Family], held: Sequence[Mapping[str, PodAllocation]]
) -> NodeInfo:
    """The node, less what is held of it, of each pod by device type."""
    pools = dict(node_info.pools)
    for family in families:
        if theirs := [
            one[family.resources.device_type]
            for one in held
            if family.resources.device_type in one and family.resources.device_type in pools
        ]:
            pools[family.resources.device_type] = _taken(pools[family.resources.device_type], family, theirs)
    return replace(node_info, pools=pools, kept=_kept(node_info, families, held))


def _kept(
    node_info: NodeInfo, families: Sequence[Family], held: Sequence[Mapping[str, PodAllocation]]
) -> Mapping[str, int]:
    """The ids of healthy devices that the kubelet keeps for these pods, by resource. A plain init container's stay with
    its pod until that ends; without one, the devices' own figures are enough.
    """
    pods = [next(iter(one.values())).pod for one in held if one]
    if not any(container.alone for pod in pods for container in pod.containers):
        return {}
    names, total = counted_resources(families), Counter[str]()
    for pod in pods:
        total += peak_requests(pod, names)
    for family in families:
        pool = node_info.pools.get(family.resources.device_type)
        sick = {state.uuid for state in pool.states if not state.info.health} if pool else set()
        for one in held if sick else ():
            if family.resources.device_type in one:
                total -= _ids_of(sick, family, one[family.resources.device_type])
    return total


def _ids_of(devices: Collection[str], family: Family, holding: PodAllocation) -> Counter[str]:
    """The ids that go with a pod's shares of these devices, by resource; not those of init containers that are over."""
    pieces = [piece for piece in holding.pieces if piece]
    asking = [
        one for one in holding.pod.containers if family.rules.policy and family.rules.policy.request(one) is not None
    ]
    counted = (
        (family.resources.count, family.resources.ids),
        *((one.resource, one.of_grant) for one in family.resources.units),
    )
    found: Counter[str] = Counter()
    for container, piece in zip(asking, pieces, strict=False):
        if container.alone and holding.pod.phase == "Running":
            continue
        for resource, ids in counted:
            if container.amount(resource) > 0:
                found[resource] += sum(ids(grant) for grant in piece if grant.uuid in devices)
    return found


def contested_parts(
    node_info: NodeInfo, families: Iterable[Family], own: Mapping[str, PodAllocation], others: NodeInfo
) -> str:
    """Which part of a device, of those that have parts of their own, both this pod and another have; empty for none.

    ``others`` is the node with what the other pods have of it.
    """
    families = tuple(families)
    mine = subtract_held(node_info, families, [own])
    for family in families:
        if family.resources.device_type not in own or family.resources.device_type not in node_info.pools:
            continue
        for one, other in zip(
            mine.pools[family.resources.device_type].states,
            others.pools[family.resources.device_type].states,
            strict=True,
        ):
            if family.resources.cores_are_bits and one.cores & other.cores:
                return f"{one.uuid}: cores {one.cores & other.cores:b} (a mask) are another pod's"
            if any(overlap(a, b) for a in one.slices for b in other.slices):
                return f"{one.uuid}: its slices are another pod's"
    return ""


def overlap(one: Slice, other: Slice) -> bool:
    """Whether two parts of a card have memory slices in common."""
    return one.start < other.start + other.size and other.start < one.start + one.size


def device_pool(node: NodeView, family: Family, held: Iterable[PodAllocation]) -> DevicePool:
    """The node's devices of one family, less what is held. WireError when an annotation of the node is damaged."""
    return _taken(_idle(node, family), family, held)


NO_DEVICES = DevicePool(states=())


def _idle(node: NodeView, family: Family) -> DevicePool:
    try:
        infos = family.rules.node_devices(node)
    except WireError:
        refuses = refusal_of(node.annotations, family.resources.device_type)
        if refuses and refuses.what == "all":
            return NO_DEVICES
        raise
    if not infos:  # most families have none
        return NO_DEVICES
    refuses = refusal_of(node.annotations, family.resources.device_type)
    if refuses and refuses.what == "all":
        return NO_DEVICES
    if sick := unhealthy_indices(node.annotations, family.resources.device_type):
        infos = tuple(replace(info, health=info.health and info.index not in sick) for info in infos)
    whole_from = refuses.whole_from if refuses else 0
    states = tuple([idle_state(_representable(info), whole_from=whole_from) for info in infos])
    return DevicePool(
        states=states, links=_links(node, family.rules.annotations.score) if family.rules.policy else NO_LINKS
    )


def _representable(info: DeviceInfo) -> DeviceInfo:
    """The device, if a decision can hold its name, its memory and its cores."""
    printable(info.id, "a device's name", without=SEPARATORS)
    in_range(info.devmem, f"memory of {info.id}", 0)
    in_range(info.devcore, f"cores of {info.id}", 0)
    return info


def _taken(pool: DevicePool, family: Family, held: Iterable[PodAllocation]) -> DevicePool:
    if family.rules.policy is None or not pool.states:
        return pool
    policy, bits = family.rules.policy, family.resources.cores_are_bits
    return replace(pool, states=in_use(pool.states, held, policy.request, policy.restore, bits=bits))


def pod_allocations(pod: PodView, families: Iterable[Family], problems: list[str]) -> Mapping[str, PodAllocation]:
    """What the pod's annotations say it has, by device type. What cannot be read is noted among the problems."""
    found: dict[str, PodAllocation] = {}
    for family in families:
        text = pod.annotations.get(family.rules.annotations.allocated)
        if not text:
            continue
        try:
            pieces = decode_devices(text)
        except WireError as error:
            problems.append(f"pod {pod.key}, {family.rules.annotations.allocated}: {error}")
            continue
        if any(pieces):
            found[family.resources.device_type] = PodAllocation(pod=pod, pieces=pieces)
    return found


@dataclass(frozen=True, slots=True)
class WrittenLinks:
    """The links of a node's devices as the node has written them. Only pods that care for links have them read: in a
    large cluster what all nodes have written would take seconds to read, and most of the memory.
    """

    text: str

    def scores(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """All pairs within ``uuids``, as ``Links`` has them. The worse of two directions counts."""
        written = decode_scores(self.text)
        nothing: Mapping[str, int] = {}
        rows = [written.get(uuid, nothing) for uuid in uuids]
        pairs = ((rows[i].get(b), rows[j].get(a)) for i, a in enumerate(uuids) for j, b in enumerate(uuids) if i < j)
        return tuple([min((score for score in pair if score is not None), default=0) for pair in pairs])


def _links(node: NodeView, key: str) -> PairScores:
    """WireError when they cannot be read."""
    text = node.annotations.get(key, "") if key else ""
    if not text:
        return NO_LINKS
    decode_scores(text)
    return WrittenLinks(text)


def with_legacy_register(family: Family) -> Family:
    """The family for a scheduler that also reads HAMi 2.7's register, where the family has no format of its own."""
    key = family.rules.annotations.register
    if not key or family.node.encode:
        return family

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        text = node.annotations.get(key, "")
        return decode_legacy(text) if text and not text.startswith("[") else family.rules.node_devices(node)

    return replace(family, rules=replace(family.rules, node_devices=devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshakes:
    """Of one node: the families whose devices are offered, those found silent, and what to write to the node."""

    offered: frozenset[str]
    silent: frozenset[str] = frozenset()
    write: Mapping[str, str | None] = field(default_factory=dict)


def check_handshakes(
    node: NodeView, families: Mapping[str, Family], now: datetime, *, before: NodeView | None, silent: frozenset[str]
) -> Handshakes:
    """Judge each of these families, which have devices on the node, at the scheduler's local time.

    ``before`` is the node as it was seen last, and ``silent`` what was concluded then. A question that is taken back
    was found unanswered by another scheduler. A silent daemon is back when it writes, or the kubelet counts devices.
    """
    offered: set[str] = set()
    quiet: set[str] = set()
    write: dict[str, str | None] = {}
    for device_type, family in families.items():
        count, key = kubelet_count(node, family), family.rules.annotations.handshake
        if key:
            text = node.annotations.get(key, "")
            belief = liveness(text, now=now, allocatable=count or 0)
            if not belief.healthy or (not count and _unheard(node, family, before, known=device_type in silent)):
                quiet.add(device_type)
                if not belief.healthy:
                    write[key] = None
                continue
            if belief.asks:
                write[key] = render_question(now)
        if count != 0:
            offered.add(device_type)
    return Handshakes(offered=frozenset(offered), silent=frozenset(quiet), write=write)


def kubelet_count(node: NodeView, family: Family) -> int | None:
    """How many of a family's devices the kubelet counts; None where it knows none, or the number is unreadable.

    0 is what remains when the daemon has gone: a pod that came then would be refused by the kubelet.
    """
    text = node.allocatable.get(family.resources.count)
    try:
        return None if text is None else whole(text)
    except ValueError:
        return None


def _unheard(node: NodeView, family: Family, before: NodeView | None, *, known: bool) -> bool:
    """Whether the daemon is silent still, or was found so by another scheduler just now."""
    keys = family.rules.annotations
    text = node.annotations.get(keys.handshake, "")
    if before is None:
        return False
    if is_question(before.annotations.get(keys.handshake, "")) and not text:
        return True
    same_devices = before.annotations.get(keys.register) == node.annotations.get(keys.register)
    return known and same_devices and (not text or is_question(text))
