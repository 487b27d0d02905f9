"""What a node has and lacks: its devices as registered, less what pods have of them, and whether its daemons live.

Beside the devices that were chosen for a pod, the kubelet counts its resources by name. A decision is written to a pod,
read from it once, and checked again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

from hami_plugin.errors import WireError
from hami_plugin.model.device import NO_LINKS, PairScores
from hami_plugin.model.views import ContainerView, NodeView, PodPatch, PodView, whole
from hami_plugin.process.concurrency import Pausing, run_without_pauses
from hami_plugin.protocol.grammar import in_range, printable
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, PHASE_ALLOCATING
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
from hami_plugin.scheduler.engine.devices import (
    DevicePool,
    Given,
    NodeInfo,
    PodAllocation,
    Slice,
    idle_state,
    subtract_holdings,
)
from hami_plugin.scheduler.engine.fit import PodFit, Policies, refit_pod
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
    return replace(pool, states=subtract_holdings(pool.states, held, policy.request, policy.restore, bits=bits))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """One pod's part of a node, by device type. ``problems`` are annotations that could not be read."""

    pod: PodView
    node: str
    held: Mapping[str, PodAllocation] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def updated(self, pod: PodView) -> PodInfo:
        """The same part, of a newer version of the pod: usage depends on its phase."""
        return replace(
            self, pod=pod, held={device_type: replace(one, pod=pod) for device_type, one in self.held.items()}
        )


def pod_info(pod: PodView, families: Iterable[Family]) -> PodInfo | None:
    """What a pod's annotations say. None when no scheduler has decided on it."""
    if not pod.annotations.get(ASSIGNED_NODE):
        return None
    problems: list[str] = []
    held = pod_allocations(pod, families, problems)
    return PodInfo(pod=pod, node=node_of(pod), held=held, problems=tuple(problems))


class ChangeLog:
    """Names of what has changed, in the order of their last change, so that a reader works out only those anew.

    The oldest are forgotten once there are too many: a reader that was last here before then starts over.
    """

    def __init__(self, room: int = 50_000) -> None:
        self.mark = 0
        self._room = room
        self._forgotten = 0
        self._at: dict[str, int] = {}

    def note(self, name: str) -> None:
        """It has changed."""
        self.mark += 1
        self._at.pop(name, None)
        self._at[name] = self.mark
        if len(self._at) > self._room:
            there = list(self._at.items())
            self._forgotten = there[self._room // 2][1]
            self._at = dict(there[self._room // 2 + 1 :])

    def since(self, mark: int) -> Sequence[str] | None:
        """What has changed after this mark; None when that is not known any more."""
        if mark < self._forgotten:
            return None
        return [name for name, _ in takewhile(lambda one: one[1] > mark, reversed(self._at.items()))]


class PodIndex:
    """Entries by the pod's UID, and by node. What is asked often is kept: a node's entries are not searched for.

    ``changes`` names the nodes whose entries have changed.
    """

    def __init__(self, entries: Iterable[PodInfo] = ()) -> None:
        self.changes = ChangeLog()
        self._entries: dict[str, PodInfo] = {}
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        self._listed: dict[str, tuple[PodInfo, ...]] = {}
        self._namespaces: dict[str, dict[str, PodInfo]] = {}
        for one in entries:
            self.put(one)

    @property
    def entries(self) -> Mapping[str, PodInfo]:
        return self._entries

    def on(self, node: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A node's entries, without that of one pod. The same object while nothing changes."""
        there = self._nodes.get(node, {})
        if without in there:
            return [one for uid, one in there.items() if uid != without]
        listed = self._listed.get(node)
        if listed is None:
            listed = self._listed[node] = tuple(there.values())
        return listed

    def keep(self, nodes: Collection[str]) -> None:
        """Forget what was asked of other nodes, once it is the most."""
        if len(self._listed) > 2 * len(nodes):
            self._listed = {name: entries for name, entries in self._listed.items() if name in nodes}

    def of(self, namespace: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A namespace's entries, without that of one pod."""
        return [one for uid, one in self._namespaces.get(namespace, {}).items() if uid != without]

    def see(self, pod: PodView, families: Iterable[Family]) -> None:
        """A version of a pod from a watch. One that has ended has nothing; one that is being deleted keeps what it has.

        A version without a decision may be older than our own: then the decision stands. One that was taken back says
        so.
        """
        if pod.terminal or (not pod.node and pod.annotations.get(ASSIGNED_NODE) == ""):
            self.drop(pod.uid)
        elif pod.deleted and pod.uid in self._entries:
            self.update(pod)
        elif found := pod_info(pod, families):
            self.put(found)
        else:
            self.update(pod)

    def put(self, one: PodInfo) -> bool:
        """Enter a pod, in place of what was known of it. Whether it is new."""
        new = not self.drop(one.pod.uid)
        self._entries[one.pod.uid] = one
        self._nodes.setdefault(one.node, {})[one.pod.uid] = one
        self._namespaces.setdefault(one.pod.namespace, {})[one.pod.uid] = one
        self._listed.pop(one.node, None)
        self.changes.note(one.node)
        return new

    def update(self, pod: PodView) -> None:
        """A newer version of a pod that is known. What it has stays as it is."""
        known = self._entries.get(pod.uid)
        if known:
            self.put(known.updated(pod))

    def drop(self, uid: str) -> bool:
        """The pod is gone. Whether it was known."""
        known = self._entries.pop(uid, None)
        if known is None:
            return False
        self._listed.pop(known.node, None)
        self.changes.note(known.node)
        pods = self._nodes[known.node]
        del pods[uid]
        if not pods:
            del self._nodes[known.node]
        others = self._namespaces[known.pod.namespace]
        del others[uid]
        if not others:
            del self._namespaces[known.pod.namespace]
        return True


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def patch(families: Iterable[Family], pod: PodView, placed: PodFit) -> Mapping[str, str]:
    """What is written to the pod beside the time: its node, and each family's part, one entry for each container."""
    written = {ASSIGNED_NODE: placed.node_info.node.name}
    decided = replace(pod, annotations={**pod.annotations, **written})
    for family in families:
        if family.resources.device_type in placed.given:
            written |= family.rules.patch(family, decided, placed.given)
    return written


def assignment(families: Iterable[Family], pod: PodView, placed: PodFit, now: datetime) -> PodPatch:
    """The whole decision, before the pod is bound."""
    return patch_with_label({**patch(families, pod, placed), ASSIGNED_TIME: _seconds(now)})


def bind_phase(now: datetime) -> PodPatch:
    """The pod is about to be bound: the node's daemon may hand out what was decided."""
    return PodPatch(annotations={BIND_PHASE: PHASE_ALLOCATING, BIND_TIME: _seconds(now)})


UNASSIGNED = PodPatch(annotations={ASSIGNED_NODE: ""})
"""The pod holds nothing of any node: what was decided before is no more, for any scheduler that reads it."""


def patch_with_label(annotations: Mapping[str, str]) -> PodPatch:
    """Annotations, and the pod's node as a label too: monitors select pods by it.

    A node's name may be longer than a label can be. Then there is none, since the API server would refuse it all.
    """
    node = annotations.get(ASSIGNED_NODE, "")
    return PodPatch(annotations=annotations, labels={ASSIGNED_NODE: node} if _LABEL.fullmatch(node) else {})


def _seconds(now: datetime) -> str:
    return str(int(now.timestamp()))


def conflict(
    families: tuple[Family, ...], node_info: NodeInfo, own: PodInfo, others: Sequence[PodInfo], *, order: str
) -> str:
    """Why a pod cannot have what was decided, beside those that are bound to its node; empty when it can.

    ``others`` may be of other schedulers' hands, decided at the same time.
    """
    held = [one.held for one in others]
    pieces = {device_type: [piece for piece in holding.pieces if piece] for device_type, holding in own.held.items()}
    left = subtract_held(node_info, families, held)
    why = refit_pod(own.pod, scheduling_policies(requested_families(own.pod, families)), left, pieces, order)
    return why or contested_parts(node_info, families, own.held, left) or insufficient_ids(own.pod, left, families)
