"""One schedulable resource of a vendor: how it is asked for, how it is placed, and what a node does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from cdi.edits import ContainerEdits
from cdi.spec import Spec
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.delivery import Delivery
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.decisions import encode_devices, one_id
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.register import DeviceInfo, decode_json
from hami_plugin.scheduler.engine import devices
from hami_plugin.scheduler.engine.devices import Given
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, by_group, first, standard, when
from hami_plugin.scheduler.engine.registered import NodeDevices, annotated, none_known
from hami_plugin.scheduler.engine.requests import Admit, amount, counted, if_limited, not_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Another resource by which the kubelet counts a family's devices, such as their cores.

    ``of_device`` is how many of them a device has, ``of_grant`` how many a grant takes.
    """

    resource: str
    of_device: Callable[[Device], int]
    of_grant: Callable[[Grant], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The extended resources of a family; ``count`` is the one that the kubelet knows.

    ``ids`` is how many of the kubelet's ids of ``count`` a grant takes, and ``units`` are counted beside devices.
    ``sized_by_count``: these ids say how large a grant may be, and memory and cores only help to choose.

    ``memory_factor`` is how many MiB one unit of the memory resource means. ``memory_in_percent``: a device has 100 of
    memory. ``cores_are_bits``: a device's cores are a mask, in which each bit is a core. ``cores_are_counted``: they
    are asked for by their number, which the kubelet counts, and not in percent.
    """

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

    @property
    def names(self) -> Mapping[str, str]:
        """The resources that a pod may ask for, by what they mean; empty where the family has none."""
        return {name: getattr(self, name) for name in _NAMES}

    def core_count(self, cores: int) -> int:
        """A device's cores as a number that people mean by it."""
        return cores.bit_count() if self.cores_are_bits else cores


_NAMES = ("count", "memory", "memory_percent", "cores", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationKeys:
    """Where a family's facts stand on nodes and pods. Empty where the family has none."""

    allocated: str
    to_allocate: str = ""
    register: str = ""
    handshake: str = ""
    score: str = ""

    @classmethod
    def of_agent(cls, name: str, *, pods: str = "") -> AnnotationKeys:
        """The keys of most node agents that speak HAMi's protocol, with the agent's name in each.

        ``pods`` is its name on pods, where that is another one.
        """
        return cls(
            register=f"hami.io/node-{name}-register",
            handshake=f"hami.io/node-handshake-{name}",
            to_allocate=f"hami.io/{pods or name}-devices-to-allocate",
            allocated=f"hami.io/{pods or name}-devices-allocated",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRule:
    """How a scheduler takes a node for itself between its decision and the node's answer.

    ``annotation`` of the node; ``named``: its value names the pod, so that the pod may take it twice.
    """

    annotation: str = NODE_LOCK
    expires_s: float = 300.0
    named: bool = True


SHARED_LOCK = LockRule()
"""HAMi's node lock, the same for all vendors that use it."""

Announce = Callable[[Snapshot, AbstractSet[str]], Mapping[str, str | None]]
"""Annotations of a node from its devices and the UUIDs of those that containers have, None for what it says no more."""

Patch = Callable[["Family", PodView, Given], Mapping[str, str]]
"""The pod annotations that tell a node of a decision. They are asked for where the family has a part in it."""


def both_keys(family: Family, _pod: PodView, given: Given) -> Mapping[str, str]:
    """HAMi's usual two annotations, with the same text."""
    text = encode_devices(given[family.device_type])
    keys = (family.annotations.to_allocate, family.annotations.allocated)
    return {key: text for key in keys if key}


def nothing_more(*_asked: object) -> Mapping[str, str | None]:
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


def nothing_missing(_host: object) -> str:
    return ""


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
    """What a container's former start has left in its ``directory`` on the host, and its next start must not find.

    Files by their ``names``, and all others that end with ``suffix``. Without a directory nothing is left.
    """

    directory: Path | None = None
    names: tuple[str, ...] = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRules:
    """How a scheduler places a family's devices on nodes.

    ``policy`` says which devices a container gets, ``admit`` what admission changes, ``node_devices`` which devices a
    node has, ``patch`` how a decision is written, and ``lock`` how the node is taken meanwhile.
    """

    policy: Policy | None = None
    admit: Admit = not_asked
    node_devices: NodeDevices = none_known
    patch: Patch = both_keys
    lock: LockRule | None = SHARED_LOCK

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
        """For devices that an agent writes to the node. Without ``admit`` containers are admitted as they are."""
        return cls(
            policy=policy,
            admit=admit or if_limited(resources.count),
            node_devices=annotated(annotations.register, decode),
            patch=patch,
        )


def whole_devices(
    device_type: str, count: str, *, uuids: tuple[str, str], same_numa: bool = False, booked: bool = True
) -> Policy:
    """The policy of devices that are handed out whole: the first that are free.

    ``count`` is the resource that asks for them, and ``uuids`` are the annotations by which a pod names those that it
    wants, and those that it does not. ``same_numa``: several come from one NUMA node, where one has enough. ``booked``:
    a grant takes all of a device's memory and cores; without it, the device alone.
    """
    several = when(lambda context: context.demand.count > 1, by_group(lambda one: one.state.info.numa))
    return Policy(
        request=counted(device_type, count=amount(count)),
        serves=standard(device_type, uuids=uuids),
        charge=devices.whole if booked else devices.slot,
        checks=CHARGED if booked else (),
        select=several if same_numa else first,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """What a node does with a family's devices: counts them, registers them, and hands them to containers.

    ``replicas`` is how many containers may share a device; ``every_core`` is what a grant of all of a device's cores
    is; ``place`` notes at a grant which part of the device it has, given what others have of it. ``numa_hints``: the
    kubelet is given each device's NUMA node.

    ``register`` is a device's entry in the node annotation, under the legacy (HAMi 2.7) naming rule or today's;
    ``encode`` writes such entries down where the family's scheduler side reads another format than most; ``reports`` is
    whether that side looks at the register only after the handshake was written anew; ``notes`` are other annotations
    of a node that has such devices, and ``announce`` those that follow from what it has and what of it is taken.

    ``whole_only`` says why this node hands out whole devices only: nothing on it would hold a container to a part.
    ``absent`` says why it has none of the family, where the vendor's devices are served under another resource. The
    node says so, and schedulers that read it place nothing there that would be refused.

    ``device_edits`` is what one device adds to any container that has it, and ``shared_edits`` what every container
    with such a device needs once: control nodes, driver files. Together they are the family's CDI spec; ``slices`` adds
    the parts of a device that have names of their own. ``specification`` describes them all by other means, and raises
    ``HamiError`` where the family's own description has to do; ``explain`` says in lines how that one came about.
    ``delivery`` says how containers receive them, and ``inject``, which turns an assignment into edits, is then left
    with what differs by container: its limits and its own files.

    ``host_problem`` says what containers will miss on this host, in words, and ``unlimited`` what containers with a
    part of a device are not held to, whatever the host has; ``leftovers`` of a container, by its pod's UID and its
    name, are removed before each of its starts.

    A function that is handed ``HostFiles`` may look at the host, on a thread of its own, and has 2 s for it. All others
    only count: they run on the event loop, for every pod that waits, and look at nothing but what they are given.
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
    whole_only: str = ""
    absent: str = ""
    delivery: Delivery = field(default_factory=Delivery)
    device_edits: Callable[[Device, HostFiles], ContainerEdits] = nothing
    shared_edits: Callable[[HostFiles], ContainerEdits] = nothing
    slices: Callable[[Device, HostFiles], Mapping[str, ContainerEdits]] = whole
    specification: Callable[[Sequence[Device], HostFiles], Spec] | None = None
    explain: Callable[[HostFiles], Sequence[str]] = lambda _host: ()
    inject: Callable[[Assignment, HostFiles], Injection] = no_node_side
    host_problem: Callable[[HostFiles], str] = nothing_missing
    unlimited: str = ""
    leftovers: Callable[[str, str, HostPaths], Leftovers] = lambda _uid, _container, _paths: Leftovers()

    @property
    def tells_taken(self) -> bool:
        """Whether what the node is to say also depends on which devices are taken."""
        return self.announce is not nothing_more

    @property
    def needs_host(self) -> bool:
        """Whether its containers miss something on a host that lacks it."""
        return self.host_problem is not nothing_missing

    def delivered(
        self,
        settings: Any,
        device_edits: Callable[[Any, Device, HostFiles], ContainerEdits],
        shared_edits: Callable[[Any, HostFiles], ContainerEdits] = nothing,
    ) -> NodeSide:
        """The same, handed over as the vendor's settings say: they are what both functions are given first."""
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

    ``device_type`` and ``annotations`` are its names, on which a node and a scheduler agree. Three values say the rest:
    how it is asked for (``resources``), how a scheduler places it (``rules``), and what a node does with it (``node``),
    which is left out where the vendor's own device plugin serves the node.
    """

    device_type: str
    annotations: AnnotationKeys
    resources: Resources
    rules: SchedulingRules = field(default_factory=SchedulingRules)
    node: NodeSide = field(default_factory=NodeSide)

    @classmethod
    def registered(
        cls,
        device_type: str,
        annotations: AnnotationKeys,
        resources: Resources,
        policy: Policy,
        *,
        decode: Callable[[str], tuple[DeviceInfo, ...]] = decode_json,
        admit: Admit | None = None,
    ) -> Family:
        """Devices that a node agent writes to the node, most often as HAMi's JSON."""
        rules = SchedulingRules.registered(resources, annotations, policy, decode=decode, admit=admit)
        return cls(device_type=device_type, annotations=annotations, resources=resources, rules=rules)
