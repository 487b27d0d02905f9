"""Devices as a scheduler sees them: what each has, what pods have of it, and what a container is billed.

A node's annotations or its capacity say which devices it has, and HAMi's reasons say why one does not serve. A family
puts rules together that make a demand of a container's limits and requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from hami_plugin.errors import WireError
from hami_plugin.model.device import MAX_DEVICES, NO_LINKS, PairScores
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView, exact, whole
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.topology import ChoiceCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """``count`` devices of the family ``device_type``; ``memory`` in MiB and ``cores`` are of each device.

    ``memory`` outranks ``percent`` where both were given; without either no memory is billed. ``cores`` are in the
    family's unit, 0 for none. ``detail`` is the family's own.
    """

    device_type: str
    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int = 0
    detail: object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A container asks for an amount that no device can be asked for."""

    resource: str
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.resource}={self.text} {self.why}"


Asked = Demand | Invalid | None
"""A demand; an invalid one; or None when the container does not ask for the family."""


INT32_MAX = 2**31 - 1

Request = Callable[[ContainerView], Asked]
Amount = Callable[[ContainerView], int | Invalid | None]
"""How much of one resource a container asks for; None when it does not say."""

Fraction = Literal["refuse", "ignore", "round up"]


def limit_or_request(container: ContainerView, resource: str, *, limits_only: bool = False) -> str | None:
    """What stands in the limits, else in the requests."""
    if not resource:
        return None
    found = container.limits.get(resource)
    return found if found is not None or limits_only else container.requests.get(resource)


def amount(
    resource: str,
    *,
    least: int = 0,
    most: int = INT32_MAX,
    factor: int = 1,
    fraction: Fraction = "refuse",
    limits_only: bool = False,
) -> Amount:
    """A number of units, bounds included. ``factor`` is what a unit stands for; the product too has 32 bits.

    ``most`` bounds the number as written. ``fraction`` says what becomes of a number that is not whole.
    """

    def read(container: ContainerView) -> int | Invalid | None:
        text = limit_or_request(container, resource, limits_only=limits_only)
        if text is None:
            return None
        highest = min(most, INT32_MAX // max(1, factor))
        try:
            units = whole(text) if fraction == "round up" else exact(text)
        except ValueError:
            return Invalid(resource=resource, text=text, why="is not a quantity")
        if units is None:
            return None if fraction == "ignore" else Invalid(resource=resource, text=text, why="is not a whole number")
        if not least <= units <= highest:
            return Invalid(resource=resource, text=text, why=f"is not within {least} to {highest}")
        return units * max(1, factor)

    return read


def no_request(_container: ContainerView) -> None:
    """A resource that the family does not have."""


def percentage(resource: str) -> Amount:
    """A percentage. More than 100 counts as 100; 0, less, and what is no whole number say nothing."""

    def read(container: ContainerView) -> int | Invalid | None:
        text = limit_or_request(container, resource)
        try:
            value = None if text is None else exact(text)
        except ValueError:
            return Invalid(resource=resource, text=text or "", why="is not a quantity")
        return None if value is None or value <= 0 else min(value, 100)

    return read


def count_request(
    device_type: str,
    *,
    count: Amount,
    memory: Amount = no_request,
    percent: Amount = no_request,
    cores: Amount = no_request,
    default_memory: int = 0,
    default_cores: int = 0,
) -> Request:
    """So many devices, each with so much memory and cores. Without an amount of memory it is all of each device's.

    An amount of 0 counts as none. The first invalid amount makes the whole request invalid.
    """

    def request(container: ContainerView) -> Asked:
        number = count(container)
        if not number or isinstance(number, Invalid):
            return number or None
        amounts: Mapping[str, int | Invalid | None] = {
            "memory": memory(container),
            "percent": percent(container),
            "cores": cores(container),
        }
        read: dict[str, int | None] = {}
        for name, value in amounts.items():
            if isinstance(value, Invalid):
                return value
            read[name] = value
        mib, share = read["memory"] or None, read["percent"] or None
        if mib is None and share is None:
            mib, share = (default_memory, None) if default_memory else (None, 100)
        wanted = read["cores"] if read["cores"] is not None else default_cores
        return Demand(device_type=device_type, count=number, memory=mib, percent=share, cores=wanted)

    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """``found``: the container uses the family. The rest is what to add or to overwrite."""

    found: bool
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The pod is refused, and why."""

    why: str


Admit = Callable[[ContainerView, PodView], Admitted | Denied]


def if_limited(*resources: str) -> Admit:
    """Nothing changes; the container uses the family if its limits name one of these resources."""
    return lambda container, _pod: Admitted(found=any(name in container.limits for name in resources if name))


def admit_unchanged(_container: ContainerView, _pod: PodView) -> Admitted:
    return Admitted(found=False)


def is_part(info: DeviceInfo, memory: int, cores: int) -> bool:
    """Whether a grant of so much is less than the registered device. A grant of 0 is one without limit."""
    return 0 < memory < info.devmem or 0 < cores < info.devcore


_PART = re.compile(r"([0-9]+)/[0-9]+ (\S+)")
_DETAIL = re.compile(r"\([^()\s]*\)$")


class Reason(StrEnum):
    """The wire's names. A device counts for the first that applies. ``WHOLE_ONLY`` is ours, and not one of HAMi's.

    So are ``NO_PARTITION``, ``ONE_PARTITION`` and ``UNCOUNTED``.
    """

    UNHEALTHY = "CardNotHealth"
    SICK = "CardUnhealthy"
    CORDONED = "CardCordoned"
    TYPE_MISMATCH = "CardTypeMismatch"
    UUID_MISMATCH = "CardUuidMismatch"
    NO_SLOT = "CardTimeSlicingExhausted"
    NO_MEMORY = "CardInsufficientMemory"
    NO_CORES = "CardInsufficientCore"
    CORES_EXHAUSTED = "CardComputeUnitsExhausted"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    CUSTOM_RULE = "CardNotFoundCustomFilterRule"
    NO_MIG_PLACE = "CardMigTopologyInfeasible"
    QOS_MISMATCH = "CardQosPolicyMismatch"
    APP_CLASS_MISMATCH = "CardAppClassMismatch"
    QUOTA = "ResourceQuotaNotFit"
    WHOLE_ONLY = "CardServedWholeOnly"
    NO_PARTITION = "CardWithoutFreePartition"
    ONE_PARTITION = "OnePartitionPerPod"
    UNCOUNTED = "ResourceNotCountedByNode"
    MODE = "ModeNotFit"
    NUMA = "NumaNotFit"
    TOO_FEW = "AllocatedCardsInsufficientRequest"
    TOO_FEW_ON_NODE = "NodeInsufficientDevice"


OURS: Mapping[Reason, str] = {
    Reason.NO_PARTITION: "no partition that is large enough is free, nor can one be cut",
    Reason.ONE_PARTITION: "a container, or a pod where partitions are lent, can have one partition of one card",
    Reason.UNCOUNTED: "the node's kubelet counts the number of slices and not what is asked for",
}
"""The explanation of each reason that is not HAMi's. None has a comma, which separates reasons."""


def summary(reasons: Mapping[Reason, int] | Mapping[str, int], total: int) -> str:
    """HAMi's text: ``3/8 CardInsufficientMemory, 5/8 CardUuidMismatch``, sorted as strings."""
    return ", ".join(sorted(f"{count}/{total} {reason}" for reason, count in reasons.items()))


def detailed(reason: str, detail: str) -> str:
    """A reason with the family's detail, as in ``summary``: ``CardQosPolicyMismatch(x)``."""
    return f"{reason}({detail})"


def plain(reason: str) -> str:
    """HAMi's reason without the detail."""
    return _DETAIL.sub("", reason)


def parse_summary(text: str) -> Mapping[str, int]:
    """How many devices each reason of a ``summary`` is about, HAMi's or not. Other text is skipped."""
    parts = (_PART.match(part) for part in text.split(", "))
    return {part.group(2): int(part.group(1)) for part in parts if part}


MAX_BYTES = 4096
MAX_NAMES = 256
_SHOWN = 64


def oversized_annotation(annotations: Mapping[str, str], keys: Iterable[str]) -> Invalid | None:
    """The first of these annotations that is too long to be read for every device."""
    for key in keys:
        text = annotations.get(key, "")
        size, names = len(text.encode("utf-8", "replace")), text.count(",") + 1
        if size > MAX_BYTES or names > MAX_NAMES:
            why = (
                f"has {size} bytes and {names} names; at most {MAX_BYTES} bytes and {MAX_NAMES} names are read: "
                "list fewer, or select devices by a part of their type's name"
            )
            return Invalid(resource=key, text=abbreviate(text), why=why)
    return None


def abbreviate(text: str) -> str:
    """The beginning of an annotation, for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class AnnotationLists:
    """The lists of one pod. Nothing in here changes an answer; it saves reading them again for every node."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._names: dict[Hashable, frozenset[str] | None] = {}
        self._verdicts: dict[Hashable, bool] = {}
        self._orders: dict[str, tuple[str, ...]] = {}

    def names(self, key: str, spelt: Callable[[str], str] = str) -> frozenset[str] | None:
        """The names in an annotation; None when there are none. One that has only commas lists nobody."""
        kept = (key, spelt)
        if kept not in self._names:
            text = self._annotations.get(key)
            names = (spelt(name.strip()) for name in text.split(",")) if text and text.strip() else None
            self._names[kept] = None if names is None else frozenset(filter(None, names))
        return self._names[kept]

    def verdict(self, subject: Hashable, judge: Callable[[], bool]) -> bool:
        """``judge`` of the subject, asked once for each."""
        found = self._verdicts.get(subject)
        if found is None:
            found = self._verdicts[subject] = judge()
        return found

    def orders(self, text: str) -> tuple[str, ...]:
        """The device orders in a text, one after the other."""
        found = self._orders.get(text)
        if found is None:
            found = self._orders[text] = tuple([order.strip() for order in text.split(",")])
        return found


def names_type(names: Collection[str], kind: str) -> bool:
    """Whether one of the names is a part of a type's."""
    return any(name in kind for name in names)


ORDER_KEY = "hami.io/gpu-scheduler-policy"

Piece = tuple[Grant, ...]
"""What one container has."""

Given = Mapping[str, tuple[Piece, ...]]
"""What a pod has so far by device type: one piece for each container, init containers first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod that has a share of a device."""

    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a card that is cut off for one container: its profile, and where, in memory slices."""

    profile: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A part of a card that exists and is a container's: its names at the driver."""

    device: str
    uuid: str
    gpu_instance: int
    compute_instance: int
    part: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """A device as registered, and what is taken of it. ``memory`` in MiB, ``cores`` in the family's unit.

    ``notes`` are the family's own data about the device: what it registered, then what bookings made of it.
    ``whole_from``: its node hands it out whole or not at all to a container of so many devices or more; 0: to none.
    """

    info: DeviceInfo
    slots: int = 0
    memory: int = 0
    cores: int = 0
    tenants: tuple[Tenant, ...] = ()
    slices: tuple[Slice, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    whole_from: int = 0

    @property
    def uuid(self) -> str:
        return self.info.id

    @property
    def index(self) -> int:
        return self.info.index

    @property
    def free_memory(self) -> int:
        return self.info.devmem - self.memory

    @property
    def free_cores(self) -> int:
        return self.info.devcore - self.cores

    def less(self, *, slots: int, memory: int, cores: int) -> DeviceState:
        """The device when so much more of it is taken."""
        return DeviceState(  # some three times as quick as ``replace``
            info=self.info,
            slots=self.slots + slots,
            memory=self.memory + memory,
            cores=self.cores + cores,
            tenants=self.tenants,
            slices=self.slices,
            notes=self.notes,
            whole_from=self.whole_from,
        )


def idle_state(info: DeviceInfo, *, whole_from: int = 0) -> DeviceState:
    """A registered device that nobody uses. ``whole_from`` as in its state."""
    return DeviceState(info=info, notes=info.custom or {}, whole_from=whole_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePool:
    """What a node has of one family: the devices with what is taken of them, as registered, and their links."""

    states: tuple[DeviceState, ...]
    links: PairScores = NO_LINKS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node, and what it has by device type.

    ``kept`` is how many ids of healthy devices the kubelet keeps for pods, by resource, where these may be more than
    the devices show.
    """

    node: NodeView
    pools: Mapping[str, DevicePool]
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """All devices of all families."""
        return tuple(state for pool in self.pools.values() for state in pool.states)


class Charge(NamedTuple):
    """What one device is billed for one container. ``device_type`` replaces the family's in the annotation."""

    memory: int = 0
    cores: int = 0
    device_type: str = ""
    notes: Mapping[str, Any] | None = None


class Candidate(NamedTuple):
    """A device that would serve, and its bill."""

    state: DeviceState
    charge: Charge

    @property
    def uuid(self) -> str:
        return self.state.info.id

    def grant(self, device_type: str) -> Grant:
        info, charge = self.state.info, self.charge
        return Grant(
            uuid=info.id,
            device_type=charge.device_type or device_type,
            memory=charge.memory,
            cores=charge.cores,
            index=info.index,
            notes=charge.notes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A namespace's limits of extended resources, and what its pods use. A resource without limit is not in there."""

    limits: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)

    def allows(self, resource: str, more: int, factor: int = 1) -> bool:
        """Whether ``more`` MiB or cores fit; the limit counts units of ``factor`` MiB."""
        limit = self.limits.get(resource)
        return limit is None or self.used.get(resource, 0) + more <= limit * max(1, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """All that a rule may look at beside the device. ``fit`` fills ``states`` with the devices it was given.

    ``order`` is the cluster's device order, which the pod's annotation overrides. ``solved`` are questions about links
    that were answered before, and ``listings`` what of the pod's annotations was read before.
    """

    demand: Demand
    pod: PodView
    node: NodeView = field(default_factory=lambda: NodeView(name=""))
    links: PairScores = NO_LINKS
    given: Given = field(default_factory=dict)
    quota: Quota = field(default_factory=Quota)
    order: str = "spread"
    states: Sequence[DeviceState] = ()
    choices: ChoiceCache | None = None
    listings: AnnotationLists | None = field(default=None, compare=False, repr=False)

    def among(self, states: Sequence[DeviceState]) -> Context:
        """The same beside these devices."""
        return Context(  # some three times as quick as ``replace``
            demand=self.demand,
            pod=self.pod,
            node=self.node,
            links=self.links,
            given=self.given,
            quota=self.quota,
            order=self.order,
            states=states,
            choices=self.choices,
            listings=self.listings,
        )

    @property
    def lists(self) -> AnnotationLists:
        """What the pod's annotations list."""
        return self.listings or AnnotationLists(self.pod.annotations)

    @property
    def orders(self) -> tuple[str, ...]:
        """The device orders in force: ``binpack``, ``spread``, ``numa``, ``mutex``, ``topology-aware``."""
        return self.lists.orders(self.pod.annotations.get(ORDER_KEY, self.order))

    @property
    def inits(self) -> int:
        """How many of the pod's containers are plain init containers, which never run beside another container."""
        return sum(container.alone for container in self.pod.containers)


WHOLE = 100


def memory_of(demand: Demand, state: DeviceState) -> int:
    """MiB of this device: what was asked for, or the percentage of what it has, rounded down."""
    if demand.memory:
        return demand.memory
    return state.info.devmem * demand.percent // 100 if demand.percent else 0


def charge_request(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """Memory and cores as asked. More cores than a whole device mean a whole device."""
    demand = context.demand
    return Charge(memory_of(demand, state), min(demand.cores, WHOLE))


def charge_whole_device(state: DeviceState, _context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """All memory and all cores."""
    return Charge(memory=state.info.devmem, cores=state.info.devcore)


def charge_slot(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """A slot, and cores if the family's requests name any. What the device registered of its own is noted."""
    return Charge(cores=context.demand.cores, notes=state.info.custom)


Booked = tuple[DeviceState, Grant]
"""The device afterwards, and the grant as it is recorded."""

Book = Callable[[DeviceState, Grant, PodView], Booked | Reason]

Restore = Callable[[DeviceState, Grant, PodView], DeviceState]
"""The device with what a pod has of it already, as its annotations say."""


def book_grant(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    """One slot, and the grant's memory and cores."""
    return subtract_grant(state, grant), grant


def subtract_grant(state: DeviceState, grant: Grant, slots: int = 1) -> DeviceState:
    return state.less(slots=slots, memory=grant.memory, cores=grant.cores)


def restore_grant(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """The grant's slots, memory and cores; the pod is a tenant."""
    return DeviceState(  # some three times as quick as ``replace``
        info=state.info,
        slots=state.slots + max(1, grant.slots),
        memory=state.memory + grant.memory,
        cores=state.cores + grant.cores,
        tenants=(*state.tenants, Tenant(name=pod.name, annotations=pod.annotations)),
        slices=state.slices,
        notes=state.notes,
        whole_from=state.whole_from,
    )


def effective_grants(pieces: Sequence[Piece], inits: int, *, bits: bool = False) -> Piece:
    """One grant for each device, by UUID: the largest init container or the sum of the others, whichever is more.

    ``bits``: cores are masks. None of them is more than another, so all that any container has are joined.
    """
    peak: dict[str, Grant] = {}
    for grant in (grant for piece in pieces[:inits] for grant in piece):
        known = peak.get(grant.uuid, grant)
        memory, cores = max(known.memory, grant.memory), _most(known.cores, grant.cores, bits=bits)
        peak[grant.uuid] = replace(known, memory=memory, cores=cores, slots=1)
    running = {grant.uuid: grant for grant in sum_grants(pieces[inits:], bits=bits)}
    return tuple(_larger(peak.get(uuid), running.get(uuid), bits=bits) for uuid in sorted({*peak, *running}))


def sum_grants(pieces: Sequence[Piece], *, bits: bool = False) -> Piece:
    """One grant for each device, by UUID, with everything that these containers have of it. ``bits`` as above."""
    total: dict[str, Grant] = {}
    for grant in (grant for piece in pieces for grant in piece):
        known = total.get(grant.uuid)
        total[grant.uuid] = (
            grant
            if known is None
            else replace(
                known,
                memory=known.memory + grant.memory,
                cores=known.cores | grant.cores if bits else known.cores + grant.cores,
                slots=known.slots + grant.slots,
            )
        )
    return tuple(total[uuid] for uuid in sorted(total))


def _larger(peak: Grant | None, running: Grant | None, *, bits: bool) -> Grant:
    if peak is None or running is None:
        only = running or peak
        assert only is not None
        return only
    memory, cores = max(peak.memory, running.memory), _most(peak.cores, running.cores, bits=bits)
    return replace(running, memory=memory, cores=cores, slots=max(1, running.slots))


def _most(one: int, other: int, *, bits: bool) -> int:
    return one | other if bits else max(one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAllocation:
    """What a pod was given of one family, as some scheduler wrote it down.

    ``counted`` is what it has now, once it was counted: with each change on a node, all its pods are.
    """

    pod: PodView
    pieces: tuple[Piece, ...]
    counted: list[Piece] = field(default_factory=list, init=False, repr=False, compare=False)


def subtract_holdings(
    states: Sequence[DeviceState],
    holdings: Iterable[PodAllocation],
    request: Request,
    restore: Restore,
    *,
    bits: bool = False,
) -> tuple[DeviceState, ...]:
    """The devices with what all these pods have of them. Devices that are no longer there count for nothing.

    ``bits``: their cores are masks.
    """
    after = {state.info.id: state for state in states}
    for holding in holdings:
        for grant in effective_holding(holding, request, bits=bits):
            if grant.uuid in after:
                after[grant.uuid] = restore(after[grant.uuid], grant, holding.pod)
    return tuple(after[state.info.id] for state in states)


def effective_holding(holding: PodAllocation, request: Request, *, bits: bool = False) -> Piece:
    """One grant for each device that the pod must have now, worked out once. ``bits``: its cores are a mask."""
    if not holding.counted:
        holding.counted.append(_held(holding, request, bits=bits))
    return holding.counted[0]


def _held(holding: PodAllocation, request: Request, *, bits: bool) -> Piece:
    """The same, worked out.

    The N-th piece that is not empty is the N-th asking container's, as on the node: schedulers place empty ones
    differently. A plain init container counts with the sidecars before it, and for nothing once the pod runs. Pieces
    that do not go with the containers count all together: that is never less than what is in use.
    """
    pieces = [piece for piece in holding.pieces if piece]
    asking = [container for container in holding.pod.containers if isinstance(request(container), Demand)]
    if len(pieces) != len(asking):
        return sum_grants(pieces, bits=bits)
    running: list[Piece] = []
    alone: list[Piece] = []
    for container, piece in zip(asking, pieces, strict=True):
        if container.alone:
            alone.append(sum_grants((*running, piece), bits=bits))
        else:
            running.append(piece)
    over = holding.pod.phase == "Running"
    return sum_grants(running, bits=bits) if over else effective_grants((*alone, *running), len(alone), bits=bits)


Decode = Callable[[str], tuple[DeviceInfo, ...]]
NodeDevices = Callable[[NodeView], tuple[DeviceInfo, ...]]
"""WireError when what the node says cannot be read, or cannot be; empty when the node has none of the family."""


def from_annotation(key: str, decode: Decode) -> NodeDevices:
    """The devices in the annotation ``key``."""
    return lambda node: decode(node.annotations[key]) if node.annotations.get(key) else ()


def in_percent(decode: Decode) -> Decode:
    """As ``decode`` reads them, but with 100 % of cores each, whatever the agent wrote."""
    return lambda text: tuple(replace(info, devcore=100) for info in decode(text))


def from_capacity(resource: str, device: Callable[[NodeView, int, int], DeviceInfo]) -> NodeDevices:
    """As many as the node's capacity says; ``device`` describes one, by its number and how many there are.

    WireError when that is more than any machine has.
    """

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        count = _plausible(node, resource, capacity(node, resource))
        return tuple(device(node, number, count) for number in range(count))

    return devices


def from_summed_capacity(cores: str, memory: str, *, each: int, unit: int, name: str, device_type: str) -> NodeDevices:
    """The node's capacity has the cores and the memory of all cards: ``each`` cores a card, memory in ``unit`` MiB.

    WireError when those are more cards than any machine has.
    """

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        total, units = capacity(node, cores), capacity(node, memory)
        cards = _plausible(node, cores, -(-total // each))
        return tuple(
            DeviceInfo(
                id=f"{node.name}-{name}-{number}",
                index=number,
                count=100,
                devmem=units * unit * each // total,
                devcore=each,
                type=device_type,
                health=True,
            )
            for number in range(cards)
        )

    return devices


def _plausible(node: NodeView, resource: str, count: int) -> int:
    if count > MAX_DEVICES:
        raise WireError(
            f"node {node.name} tells of {node.capacity[resource]} {resource}, which is {count} devices; "
            f"no node has more than {MAX_DEVICES}"
        )
    return count


def capacity(node: NodeView, resource: str) -> int:
    """The node's capacity of a resource; 0 when it has none, or an unreadable one."""
    if resource not in node.capacity:  # nearly always: a scheduler asks each node for what each vendor has
        return 0
    try:
        return max(0, whole(node.capacity[resource]))
    except ValueError:
        return 0


def no_devices(_node: NodeView) -> tuple[DeviceInfo, ...]:
    return ()
