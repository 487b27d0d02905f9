"""One schedulable resource of a vendor: how it is asked for, how it is placed, and what a node does with it."""

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
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.fit import Policy
from hami_plugin.scheduler.engine.registered import NodeDevices, annotated, none_known
from hami_plugin.scheduler.engine.requests import Admit, if_limited, not_asked
from hami_plugin.vendor import defaults
from hami_plugin.vendor.annotations import SHARED_LOCK, AnnotationKeys, Announce, LockRule, Patch, both_keys
from hami_plugin.vendor.resources import Resources


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

    replicas: Callable[[Device], int] = defaults.one
    every_core: Callable[[Device], int] = defaults.percent
    place: Callable[[Grant, Device, Sequence[Grant]], Grant] = defaults.anywhere
    numa_hints: bool = False
    register: Callable[[Device, bool], DeviceInfo] = defaults.no_node_side
    encode: Callable[[Sequence[DeviceInfo]], str] | None = None
    reports: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    announce: Announce = defaults.nothing_more
    whole_only: str = ""
    absent: str = ""
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

    @property
    def tells_taken(self) -> bool:
        """Whether what the node is to say also depends on which devices are taken."""
        return self.announce is not defaults.nothing_more

    @property
    def needs_host(self) -> bool:
        """Whether its containers miss something on a host that lacks it."""
        return self.host_problem is not defaults.nothing_missing

    def delivered(
        self,
        settings: Any,
        device_edits: Callable[[Any, Device, HostFiles], ContainerEdits],
        shared_edits: Callable[[Any, HostFiles], ContainerEdits] = defaults.nothing,
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

    ``word`` and ``annotations`` are its names, which a node and a scheduler agree on. Three values say the rest: how it
    is asked for (``resources``), how a scheduler places it (``rules``), and what a node does with it (``node``), which
    is left out where the vendor's own device plugin serves the node.
    """

    word: str
    annotations: AnnotationKeys
    resources: Resources
    rules: SchedulingRules = field(default_factory=SchedulingRules)
    node: NodeSide = field(default_factory=NodeSide)
