"""One schedulable resource of a vendor: how pods request it, how a scheduler places it, and how a node serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from cdi.spec import ContainerEdits, Spec
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.delivery import Delivery
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.usage import ContainerUsage, Pace
from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.nodes import DeviceInfo, decode_json
from hami_plugin.protocol.pods import encode_devices, one_id
from hami_plugin.scheduler.engine import devices
from hami_plugin.scheduler.engine.devices import (
    Admit,
    Given,
    Instance,
    NodeDevices,
    admit_unchanged,
    amount,
    count_request,
    from_annotation,
    if_limited,
    no_devices,
)
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, by_group, first, standard, when
from hami_plugin.sdk.parameters import NO_PARAMETERS, Parameters
from hami_plugin.sdk.partitions import (
    Cuttable,
    ModeDriver,
    Partition,
    PartitionDriver,
    Placement,
    Profile,
    Sized,
    unoccupied,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Another resource in which the kubelet counts a family's devices, such as their cores.

    ``of_device`` is how many units a device has, ``of_grant`` how many a grant takes.
    """

    resource: str
    of_device: Callable[[Device], int]
    of_grant: Callable[[Grant], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The extended resources of a family, and the ``device_type`` that annotations have for its devices.

    ``count`` is the resource that the kubelet knows.

    ``ids`` is how many of the kubelet's ids of ``count`` a grant takes; ``units`` are resources counted beside devices.
    ``sized_by_count``: the number of ids limits the size of a grant; memory and cores only help to choose.

    ``memory_factor`` is the MiB per unit of the memory resource. ``memory_in_percent``: each device has 100 units of
    memory. ``cores_are_bits``: a device's cores are a bit mask. ``cores_are_counted``: cores are requested by number,
    which the kubelet counts, and not in percent. ``cores_are_units``: pods ask for a percentage, of a device's own
    compute units.
    """

    device_type: str
    count: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    priority: str = ""
    ids: Callable[[Grant], int] = one_id
    units: tuple[Units, ...] = ()
    sized_by_count: bool = False
    memory_factor: int = 1
    memory_in_percent: bool = False
    cores_are_bits: bool = False
    cores_are_counted: bool = False
    cores_are_units: bool = False

    @property
    def names(self) -> Mapping[str, str]:
        """The resources that a pod may request, by meaning; empty for those the family does not have."""
        return {name: getattr(self, name) for name in _NAMES}

    def core_count(self, cores: int) -> int:
        """The number of a device's cores."""
        return cores.bit_count() if self.cores_are_bits else cores


_NAMES = ("count", "memory", "memory_percent", "cores", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationKeys:
    """The keys of a family's annotations on nodes and pods; empty for those it does not use.

    ``others`` are what else its node side writes on a node, besides keys that begin with ``hami-plugin.io/``.
    """

    allocated: str = ""
    to_allocate: str = ""
    register: str = ""
    handshake: str = ""
    score: str = ""
    others: tuple[str, ...] = ()

    @property
    def of_nodes(self) -> frozenset[str]:
        """All that is written on nodes, by their daemons and by schedulers."""
        return frozenset((self.register, self.handshake, self.score, *self.others)) - {""}

    @classmethod
    def of_agent(cls, name: str, *, pods: str = "") -> AnnotationKeys:
        """The keys that most agents of HAMi's protocol use, with the agent's ``name`` in each.

        ``pods`` is its name in the keys on pods, if that differs.
        """
        return cls(
            register=f"hami.io/node-{name}-register",
            handshake=f"hami.io/node-handshake-{name}",
            to_allocate=f"hami.io/{pods or name}-devices-to-allocate",
            allocated=f"hami.io/{pods or name}-devices-allocated",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRule:
    """How a scheduler locks a node between its decision and the node's answer.

    ``annotation`` is the node's; ``named``: its value names the pod, so that the same pod may take it again.
    """

    annotation: str = NODE_LOCK
    expires_s: float = 300.0
    named: bool = True


SHARED_LOCK = LockRule()
"""HAMi's node lock, shared by all vendors that use it."""

Announce = Callable[[Snapshot, AbstractSet[str]], Mapping[str, str | None]]
"""Node annotations, given the devices and the UUIDs of those in use. None removes an annotation."""

ReadUsage = Callable[[str, str, Sequence[Share], HostFiles], ContainerUsage]
"""What a container uses, by its pod's UID and its name, of the shares that it has, in the order in which it sees them.

``OSError`` where the host's files cannot be read. It is called on a thread, with a timeout for all containers together.
"""

Limit = Callable[[str, str, Sequence[Share], HostFiles], None]
"""Has a container that runs held to the amounts of these shares, all of them or none; the parameters are as above.

``HamiError`` or ``OSError`` where none. It is called on the same thread.
"""

SetPace = Callable[[str, str, Sequence[Share], Pace, HostFiles], None]
"""Lets a container that runs start work on its devices, or holds it back. As ``Limit``, but for one that has used none,
which is let go.
"""

Patch = Callable[["Family", PodView, Given], Mapping[str, str]]
"""The pod annotations that carry a decision to the node. Called if the decision includes devices of the family."""


def both_keys(family: Family, _pod: PodView, given: Given) -> Mapping[str, str]:
    """HAMi's usual two annotations, with the same value."""
    text = encode_devices(given[family.resources.device_type])
    keys = (family.rules.annotations.to_allocate, family.rules.annotations.allocated)
    return {key: text for key in keys if key}


def nothing_more(*_asked: object) -> Mapping[str, str | None]:
    return {}


def unlabelled(_snapshot: Snapshot) -> Mapping[str, str]:
    return {}


def one(_device: Device) -> int:
    return 1


def anywhere(grant: Grant, _device: Device, _others: Sequence[Grant]) -> Grant:
    return grant


def percent(_device: Device) -> int:
    return 100


def nothing(*_asked: object) -> ContainerEdits:
    return ContainerEdits()


def whole(*_asked: object) -> Mapping[str, ContainerEdits]:
    return {}


def always(*_asked: object) -> bool:
    return True


def nothing_missing(_host: object) -> str:
    return ""


def uncut(info: DeviceInfo, _profiles: Sequence[Profile]) -> DeviceInfo:
    return info


def without_places(info: DeviceInfo, blocked: Sequence[Partition]) -> DeviceInfo:
    """The device without the placements that overlap with what is ``blocked``, so that no scheduler chooses them."""
    if not blocked or not info.mig_profiles:
        return info
    taken = [one.placement for one in blocked]
    profiles = (
        replace(profile, placements=tuple(unoccupied(profile.placements, taken))) for profile in info.mig_profiles
    )
    return replace(info, mig_profiles=tuple(profiles))


def all_of_them(_card: Device, profiles: Sequence[Profile]) -> Sequence[Profile]:
    return profiles


def nothing_to_tell(*_asked: object) -> Mapping[str, str]:
    return {}


def no_node_side(*_asked: object) -> NoReturn:
    raise HamiError(
        "this vendor's devices can be scheduled, and are served by the vendor's own device plugin",
        hint="leave the vendor out of this daemon's configuration",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a container receives, and what must be on the host before it starts: directories (mode 0777) and files."""

    edits: ContainerEdits
    directories: tuple[Path, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What an earlier start of a container left in its ``directory`` on the host, to be removed before the next one.

    Files with one of the ``names``, or ending in ``suffix``. Without a directory there is nothing to remove.
    """

    directory: Path | None = None
    names: tuple[str, ...] = ()
    suffix: str = ""


def no_instances(_pod: PodView) -> tuple[Instance, ...]:
    """Cards are not cut."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRules:
    """How a scheduler places a family's devices on nodes. Node and scheduler tell each other by ``annotations``.

    ``policy`` chooses a container's devices, ``admit`` is what admission changes, ``node_devices`` lists a node's
    devices, ``patch`` writes a decision, and ``lock`` is the lock held meanwhile. ``cordon`` is the node's annotation
    of UUIDs that schedulers leave out. ``instances`` are the parts of cards that a pod's annotations say it has.
    """

    annotations: AnnotationKeys = field(default_factory=AnnotationKeys)
    policy: Policy | None = None
    admit: Admit = admit_unchanged
    node_devices: NodeDevices = no_devices
    patch: Patch = both_keys
    lock: LockRule | None = SHARED_LOCK
    cordon: str = ""
    instances: Callable[[PodView], Sequence[Instance]] = no_instances

    @classmethod
    def registered(
        cls,
        resources: Resources,
        annotations: AnnotationKeys,
        policy: Policy,
        *,
        decode: Callable[[str], tuple[DeviceInfo, ...]],
        admit: Admit | None = None,
        patch: Patch = both_keys,
    ) -> SchedulingRules:
        """For devices that an agent registers in a node annotation. Without ``admit``, admission changes nothing."""
        return cls(
            annotations=annotations,
            policy=policy,
            admit=admit or if_limited(resources.count),
            node_devices=from_annotation(annotations.register, decode),
            patch=patch,
        )


def whole_devices(
    device_type: str, count: str, *, uuids: tuple[str, str], same_numa: bool = False, booked: bool = True
) -> Policy:
    """The policy for devices that are allocated whole: the first free ones.

    ``count`` is the resource that requests them. ``uuids`` are the annotations with which a pod selects devices, and
    excludes devices. ``same_numa``: several come from one NUMA node if one has enough. ``booked``: a grant takes all
    memory and cores of a device; otherwise only its slot.
    """
    several = when(lambda context: context.demand.count > 1, by_group(lambda one: one.state.info.numa))
    return Policy(
        request=count_request(device_type, count=amount(count)),
        serves=standard(device_type, uuids=uuids),
        charge=devices.charge_whole_device if booked else devices.charge_slot,
        checks=CHARGED if booked else (),
        select=several if same_numa else first,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A partition that a pod's container is to have. ``device`` counts the container's, from 0.

    ``uuid`` and ``ids`` are the driver's names for it, where the pod's annotations have them already.
    """

    container: str
    device: int
    card: str
    profile: str
    placement: Placement
    uuid: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSide:
    """How a family's cards are cut for containers while they are allocated.

    ``open`` opens the driver; nothing is asked of the hardware yet. ``reserved`` is what a pod's annotations say that
    it is to have, and ``wanted`` what one assignment is to have, empty for one of whole cards. ``inject`` is
    ``NodeSide.inject`` for the partitions that were made for it, in the order of ``wanted``; they bring all that their
    container needs with them. ``names`` are the annotations that tell a pod's partitions, given those that exist.
    ``edits`` are a partition's own in a CDI spec, given its card.
    ``registered`` is a card's entry in the node annotation, given what it may be cut into; none while that is unknown.
    ``without`` is the entry without the room of partitions that no scheduler counts, and ``announce`` computes node
    annotations from the devices and what each of them may be cut into.

    ``by_claims``: they can be made for ResourceClaims too, by nothing but card, profile and place; ``allowed`` are the
    profiles that a claim may have of a card. ``sized`` are partitions of any size: cards without profiles are shared by
    amounts. ``whole``: a card that is not cut is given out as it is, beside the profiles of the others.

    ``all_ours``: a partition that nobody here has made is destroyed after 10 minutes, where nobody uses it.
    ``lasting``: partitions and their UUIDs outlive the host's reboot.
    """

    open: Callable[[HostFiles], PartitionDriver]
    reserved: Callable[[PodView], Sequence[Reservation]]
    wanted: Callable[[Assignment], Sequence[Reservation]]
    inject: Callable[[Assignment, Sequence[Partition], HostFiles], Injection]
    names: Callable[[PodView, Sequence[tuple[Reservation, Partition]]], Mapping[str, str]] = nothing_to_tell
    registered: Callable[[DeviceInfo, Sequence[Profile]], DeviceInfo] = uncut
    without: Callable[[DeviceInfo, Sequence[Partition]], DeviceInfo] = without_places
    announce: Callable[[Snapshot, Mapping[str, Cuttable]], Mapping[str, str | None]] = nothing_more
    edits: Callable[[Device, Partition, HostFiles], ContainerEdits] = nothing
    by_claims: bool = False
    allowed: Callable[[Device, Sequence[Profile]], Sequence[Profile]] = all_of_them
    sized: Sized | None = None
    whole: bool = False
    all_ours: bool = False
    lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSide:
    """The mode in which a family's cards can be cut, where the daemon switches it. ``name`` is the vendor's word.

    ``wanted`` says whether a card is to be in it; None leaves the card as it is. The driver reports a card that is in
    the other mode as unhealthy, so that no container gets it.
    """

    name: str
    open: Callable[[HostFiles], ModeDriver]
    wanted: Callable[[Device], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """How a node serves a family's devices: counts them, registers them, and hands them to containers.

    ``replicas`` is how many containers may share a device. ``every_core`` is a grant of all its cores. ``place``
    records which part of the device a grant has, given the other grants. ``numa_hints``: tell the kubelet each device's
    NUMA node.

    ``register`` is a device's entry in the node annotation, under the legacy (HAMi 2.7) naming rule or today's.
    ``encode`` serializes the entries, if HAMi's scheduler reads another format for this family. ``reports``: that
    scheduler reads the register only after a new handshake. ``notes`` are fixed annotations of a node with such
    devices; ``announce`` computes others from the devices and those in use. ``labels`` are labels of the node that
    users know from the vendor's own tools.

    ``whole_only`` is why this node allocates whole devices only: nothing on it would limit a container to a part.
    ``absent`` is why it has none of the family: the vendor's devices are served under another resource. The node
    publishes both, so that schedulers that read them place nothing there that would be refused.

    ``device_edits`` is what one device adds to its container, and ``shared_edits`` what every container with such a
    device needs once: control nodes, driver files. Together they are the family's CDI spec; ``slices`` adds the parts
    of a device that have their own names. ``specification`` creates the spec by other means, and raises ``HamiError``
    to fall back to these; ``explain`` lists how they were found. ``delivery`` is how containers receive them.
    ``inject`` turns an assignment into the edits that differ by container: its limits and its own files. ``lend`` is
    for devices of which no scheduler decides: what a container receives with these, whoever it is.

    ``host_problem`` is what containers will miss on this host that have a ``limited`` device, and ``unlimited`` which
    limits of a part nothing enforces, on any host. ``leftovers`` of a container (pod UID, name) are removed before each
    of its starts. ``usage`` reads what a container uses of its devices, ``limit`` changes how much that may be while it
    runs, and ``pace`` whether it may start work now. ``folders`` is the host directory with one directory for each
    container, ``<pod UID>_<name>``, which is removed with its pod. ``partitions`` are cut for containers, and ``modes``
    of cards are switched. ``parameters`` are what ResourceClaims may say to its devices beside amounts.

    A function that receives ``HostFiles`` may inspect the host, on a thread of its own, within 2 s. All others only
    compute from their arguments: they run on the event loop, for every waiting pod.
    """

    replicas: Callable[[Device], int] = one
    every_core: Callable[[Device], int] = percent
    place: Callable[[Grant, Device, Sequence[Grant]], Grant] = anywhere
    numa_hints: bool = False
    register: Callable[[Device, bool], DeviceInfo] = no_node_side
    encode: Callable[[Sequence[DeviceInfo]], str] | None = None
    reports: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    announce: Announce = nothing_more
    labels: Callable[[Snapshot], Mapping[str, str]] = unlabelled
    whole_only: str = ""
    absent: str = ""
    delivery: Delivery = field(default_factory=Delivery)
    device_edits: Callable[[Device, HostFiles], ContainerEdits] = nothing
    shared_edits: Callable[[HostFiles], ContainerEdits] = nothing
    slices: Callable[[Device, HostFiles], Mapping[str, ContainerEdits]] = whole
    specification: Callable[[Sequence[Device], HostFiles], Spec] | None = None
    explain: Callable[[HostFiles], Sequence[str]] = lambda _host: ()
    inject: Callable[[Assignment, HostFiles], Injection] = no_node_side
    lend: Callable[[Sequence[Device], HostFiles], ContainerEdits] | None = None
    host_problem: Callable[[HostFiles], str] = nothing_missing
    limited: Callable[[Device], bool] = always
    unlimited: str = ""
    leftovers: Callable[[str, str, HostPaths], Leftovers] = lambda _uid, _container, _paths: Leftovers()
    usage: ReadUsage | None = None
    limit: Limit | None = None
    pace: SetPace | None = None
    folders: Callable[[HostPaths], Path] | None = None
    partitions: PartitionSide | None = None
    modes: ModeSide | None = None
    parameters: Parameters = NO_PARAMETERS

    @property
    def tells_taken(self) -> bool:
        """Whether the node's annotations depend on which devices are in use."""
        return self.announce is not nothing_more

    @property
    def needs_host(self) -> bool:
        """Whether its containers depend on files that a host may lack."""
        return self.host_problem is not nothing_missing

    def delivered(
        self,
        settings: Any,
        device_edits: Callable[[Any, Device, HostFiles], ContainerEdits],
        shared_edits: Callable[[Any, HostFiles], ContainerEdits] = nothing,
    ) -> NodeSide:
        """The same, delivered as the vendor's settings say. Both functions receive the settings first."""
        return replace(
            self,
            delivery=settings.delivery,
            unlimited=settings.unlimited,
            device_edits=partial(device_edits, settings),
            shared_edits=partial(shared_edits, settings),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One schedulable resource of a vendor.

    It is how pods request it (``resources``), how a scheduler places it (``rules``), and how a node serves it
    (``node``), which is omitted if the vendor's own device plugin serves the node.
    """

    resources: Resources
    rules: SchedulingRules = field(default_factory=SchedulingRules)
    node: NodeSide = field(default_factory=NodeSide)

    @classmethod
    def registered(
        cls,
        resources: Resources,
        annotations: AnnotationKeys,
        policy: Policy,
        *,
        decode: Callable[[str], tuple[DeviceInfo, ...]] = decode_json,
        admit: Admit | None = None,
    ) -> Family:
        """Devices that an agent registers in a node annotation, usually as HAMi's JSON."""
        rules = SchedulingRules.registered(resources, annotations, policy, decode=decode, admit=admit)
        return cls(resources=resources, rules=rules)
