"""One schedulable resource of a vendor: how it is asked for, placed, registered and handed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cdi.edits import ContainerEdits
from cdi.spec import Spec
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.delivery import Delivery
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.policy.admission import Admit, if_limited, not_asked
from hami_plugin.policy.claims import one_id
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.registered import NodeDevices, annotated, none_known
from hami_plugin.vendor import defaults
from hami_plugin.vendor.annotations import SHARED_LOCK, AnnotationKeys, Announce, LockRule, Patch, both_keys
from hami_plugin.vendor.resources import ResourceNames, Units
from hami_plugin.wire.nodes import DeviceInfo


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
class Family:
    """One schedulable resource of a vendor, as data and functions.

    On the node, ``replicas`` is how many containers may share a device; ``register`` its entry in the node annotation,
    under the legacy (HAMi 2.7) naming rule or today's; ``encode`` writes such entries down where the family's scheduler
    side reads another format than most; ``reports`` is whether that side looks at the register only after the handshake
    was written anew; ``node_notes`` are other annotations of a node that has such devices, and ``announce`` those that
    follow from what it has and what of it is taken.

    ``inject`` turns an assignment into edits; ``host_problem`` says what containers will miss on this host, in words,
    and ``unlimited`` what containers with a part of a device are not held to, whatever the host has;
    ``leftovers`` of a container, by its pod's UID and its name, are removed before each of its starts;
    ``memory_factor`` is how many MiB one unit of the memory resource means; ``every_core`` is what a grant of all of a
    device's cores is; ``units`` are counted beside devices, and ``ids`` is how many of the kubelet's ids a grant takes;
    ``place`` notes at a grant which part of the device it has, given what others have of it.

    ``whole_only`` says why this node hands out whole devices only: nothing on it would hold a container to a part.
    ``absent`` says why it has none of the family, where the vendor's devices are served under another resource. The
    node says so, and schedulers that read it place nothing there that would be refused.

    ``device_edits`` is what one device adds to any container that has it, and ``shared_edits`` what every container
    with such a device needs once: control nodes, driver files. Together they are the family's CDI spec; ``slices`` adds
    the parts of a device that have names of their own. ``specification`` describes them all by other means, and raises
    ``HamiError`` where the family's own description has to do; ``explain`` says in lines how that one came about.
    ``delivery`` says how containers receive them, and ``inject`` is then left with what differs by container: its
    limits and its own files.

    A function that is handed ``HostFiles`` may look at the host, on a thread of its own, and has 2 s for it. All others
    only count: they run on the event loop, for every pod that waits, and look at nothing but what they are given.

    For scheduling, ``policy`` says which devices a container gets, ``admit`` what admission changes, ``node_devices``
    which devices a node has, ``patch`` how a decision is written, and ``lock`` how the node is taken meanwhile.
    ``memory_in_percent``: a device has 100 of memory. ``sized_by_count``: how large a grant may be is told by how many
    of the kubelet's ids it takes, and memory and cores only help to choose.
    ``cores_are_bits``: a device's cores are a mask, in which each bit is a core. ``cores_are_counted``: they are asked
    for by their number, which the kubelet counts, and not in percent.
    """

    word: str
    resources: ResourceNames
    annotations: AnnotationKeys
    policy: Policy | None = None
    admit: Admit = not_asked
    node_devices: NodeDevices = none_known
    patch: Patch = both_keys
    lock: LockRule | None = SHARED_LOCK
    replicas: Callable[[Device], int] = defaults.one
    register: Callable[[Device, bool], DeviceInfo] = defaults.no_node_side
    encode: Callable[[Sequence[DeviceInfo]], str] | None = None
    reports: bool = False
    node_notes: Mapping[str, str] = field(default_factory=dict)
    announce: Announce = defaults.nothing_more
    delivery: Delivery = field(default_factory=Delivery)
    device_edits: Callable[[Device, HostFiles], ContainerEdits] = defaults.nothing
    shared_edits: Callable[[HostFiles], ContainerEdits] = defaults.nothing
    slices: Callable[[Device, HostFiles], Mapping[str, ContainerEdits]] = defaults.whole
    specification: Callable[[Sequence[Device], HostFiles], Spec] | None = None
    explain: Callable[[HostFiles], Sequence[str]] = lambda _host: ()
    inject: Callable[[Assignment, HostFiles], Injection] = defaults.no_node_side
    host_problem: Callable[[HostFiles], str] = defaults.nothing_missing
    unlimited: str = ""
    leftovers: Callable[[str, str, HostPaths], Leftovers] = lambda _uid, _container, _paths: Leftovers()
    numa_hints: bool = False
    cores_are_bits: bool = False
    cores_are_counted: bool = False
    memory_factor: int = 1
    memory_in_percent: bool = False
    sized_by_count: bool = False
    place: Callable[[Grant, Device, Sequence[Grant]], Grant] = defaults.anywhere
    every_core: Callable[[Device], int] = defaults.percent
    whole_only: str = ""
    absent: str = ""
    units: tuple[Units, ...] = ()
    ids: Callable[[Grant], int] = one_id

    @property
    def tells_taken(self) -> bool:
        """Whether what the node is to say also depends on which devices are taken."""
        return self.announce is not defaults.nothing_more

    def delivered(
        self,
        settings: Any,
        device_edits: Callable[[Any, Device, HostFiles], ContainerEdits],
        shared_edits: Callable[[Any, HostFiles], ContainerEdits] = defaults.nothing,
    ) -> Family:
        """The family as its vendor's settings have it handed over: they are what both functions are given first."""
        return replace(
            self,
            delivery=settings.delivery,
            unlimited=settings.unlimited,
            device_edits=partial(device_edits, settings),
            shared_edits=partial(shared_edits, settings),
        )

    @property
    def needs_host(self) -> bool:
        """Whether its containers miss something on a host that lacks it."""
        return self.host_problem is not defaults.nothing_missing

    def core_count(self, cores: int) -> int:
        """A device's cores as a number that people mean by it."""
        return cores.bit_count() if self.cores_are_bits else cores

    @classmethod
    def registered(
        cls,
        word: str,
        resources: ResourceNames,
        annotations: AnnotationKeys,
        policy: Policy,
        *,
        decode: Callable[[str], tuple[DeviceInfo, ...]],
        admit: Admit | None = None,
        patch: Patch = both_keys,
        memory_factor: int = 1,
    ) -> Family:
        """A family whose devices an agent writes to the node. Without ``admit`` containers are admitted as they are."""
        return cls(
            word=word,
            resources=resources,
            annotations=annotations,
            policy=policy,
            admit=admit or if_limited(resources.count),
            node_devices=annotated(annotations.register, decode),
            patch=patch,
            memory_factor=memory_factor,
        )
