"""The contract between the daemon and a vendor: what a vendor's module exports, and how it is found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from cdi.edits import ContainerEdits
from cdi.spec import Spec
from hami_plugin.errors import HamiError, UnknownVendorError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.delivery import Delivery
from hami_plugin.model.device import Device, Discovery, Fault, Snapshot
from hami_plugin.model.links import Links
from hami_plugin.model.machine import Machine
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.model.views import PodView
from hami_plugin.parity import Parity
from hami_plugin.policy.admission import Admit, if_limited, not_asked
from hami_plugin.policy.claims import one_id
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.registered import NodeDevices, annotated, none_known
from hami_plugin.policy.states import Given
from hami_plugin.wire.keys import NODE_LOCK
from hami_plugin.wire.nodes import DeviceInfo
from hami_plugin.wire.pods import encode_devices

if TYPE_CHECKING:  # a vendor's driver also runs where pydantic is not installed
    from hami_plugin.config.settings import VendorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A fault of one device, or of all of a driver's devices when ``uuid`` is None."""

    uuid: str | None
    fault: Fault


class Driver(Protocol):
    """One vendor's driver. Every method blocks, is bounded, and is called on the driver's own thread only."""

    @property
    def busy_with(self) -> str | None:
        """UUID of the device that the call in progress is asking about. Read from other threads."""

    def discover(self) -> Discovery:
        """Look at every device. One that fails is a sighting with a fault.

        ``DriverUnavailableError`` when the driver as a whole does not answer.
        """

    def links(self) -> Links:
        """Measure every pair that the last ``discover`` saw. A pair that fails is a problem in the answer, no error."""

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """Wait up to ``timeout`` seconds for health events; an empty answer is the usual one."""

    def close(self) -> None:
        """Let go of the driver. A later ``discover`` opens it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """The extended resources of a family; ``count`` is the one that the kubelet knows."""

    count: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    priority: str = ""


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
class Injection:
    """What a container receives, and what must be on the host before it starts: directories (mode 0777) and files."""

    edits: ContainerEdits
    directories: tuple[Path, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)


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

Patch = Callable[["Family", PodView, Given], Mapping[str, str]]
"""The pod annotations that tell a node of a decision. They are asked for where the family has a part in it."""


def both_keys(family: Family, _pod: PodView, given: Given) -> Mapping[str, str]:
    """HAMi's usual two annotations, with the same text."""
    text = encode_devices(given[family.word])
    keys = (family.annotations.to_allocate, family.annotations.allocated)
    return {key: text for key in keys if key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Another resource by which the kubelet counts a family's devices, such as their cores.

    ``of_device`` is how many of them a device has, ``of_grant`` how many a grant takes.
    """

    resource: str
    of_device: Callable[[Device], int]
    of_grant: Callable[[Grant], int]


Announce = Callable[[Snapshot, AbstractSet[str]], Mapping[str, str | None]]
"""Annotations of a node from its devices and the UUIDs of those that containers have, None for what it says no more."""


def _nothing_more(*_asked: object) -> Mapping[str, str | None]:
    return {}


def _one(_device: Device) -> int:
    return 1


def _anywhere(grant: Grant, _device: Device, _others: Sequence[Grant]) -> Grant:
    return grant


def _always(*_asked: object) -> bool:
    return True


def _percent(_device: Device) -> int:
    return 100


def _nothing(*_asked: object) -> ContainerEdits:
    return ContainerEdits()


def _whole(*_asked: object) -> Mapping[str, ContainerEdits]:
    return {}


def _no_node_side(*_asked: object) -> NoReturn:
    raise HamiError(
        "this vendor's devices can be scheduled, and are served by the vendor's own device plugin",
        hint="leave the vendor out of this daemon's configuration",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One schedulable resource of a vendor, as data and functions.

    On the node, ``replicas`` is how many containers may share a device; ``register`` its entry in the node annotation,
    under the legacy (HAMi 2.7) naming rule or today's; ``encode`` writes such entries down where the family's scheduler
    side reads another format than most; ``reports`` is whether that side looks at the register only after the handshake
    was written anew; ``node_notes`` are other annotations of a node that has such devices, and ``announce`` those that
    follow from what it has and what of it is taken.

    ``inject`` turns an assignment into edits; ``host_problem`` says what containers will miss on this host, in words;
    ``memory_factor`` is how many MiB one unit of the memory resource means; ``every_core`` is what a grant of all of a
    device's cores is; ``units`` are counted beside devices, and ``ids`` is how many of the kubelet's ids a grant takes;
    ``place`` notes at a grant which part of the device it has, given what others have of it.

    ``device_edits`` is what one device adds to any container that has it, and ``shared_edits`` what every container
    with such a device needs once: control nodes, driver files. Together they are the family's CDI spec; ``slices`` adds
    the parts of a device that have names of their own. ``specification`` describes them all by other means, and raises
    ``HamiError`` where the family's own description has to do; ``explain`` says in lines how that one came about.
    ``delivery`` says how containers receive them, and ``inject`` is then left with what differs by container: its
    limits and its own files.

    For scheduling, ``policy`` says which devices a container gets, ``admit`` what admission changes, ``node_devices``
    which devices a node has, ``patch`` how a decision is written, and ``lock`` how the node is taken meanwhile.
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
    replicas: Callable[[Device], int] = _one
    register: Callable[[Device, bool], DeviceInfo] = _no_node_side
    encode: Callable[[Sequence[DeviceInfo]], str] | None = None
    reports: bool = False
    node_notes: Mapping[str, str] = field(default_factory=dict)
    announce: Announce = _nothing_more
    delivery: Delivery = field(default_factory=Delivery)
    device_edits: Callable[[Device, HostFiles], ContainerEdits] = _nothing
    shared_edits: Callable[[HostFiles], ContainerEdits] = _nothing
    slices: Callable[[Device, HostFiles], Mapping[str, ContainerEdits]] = _whole
    specification: Callable[[Sequence[Device], HostFiles], Spec] | None = None
    explain: Callable[[HostFiles], Sequence[str]] = lambda _host: ()
    inject: Callable[[Assignment, HostFiles], Injection] = _no_node_side
    host_problem: Callable[[HostFiles], str] = lambda _host: ""
    numa_hints: bool = False
    cores_are_bits: bool = False
    cores_are_counted: bool = False
    memory_factor: int = 1
    place: Callable[[Grant, Device, Sequence[Grant]], Grant] = _anywhere
    every_core: Callable[[Device], int] = _percent
    units: tuple[Units, ...] = ()
    ids: Callable[[Grant], int] = one_id

    @property
    def tells_taken(self) -> bool:
        """Whether what the node is to say also depends on which devices are taken."""
        return self.announce is not _nothing_more

    def delivered(
        self,
        settings: Any,
        device_edits: Callable[[Any, Device, HostFiles], ContainerEdits],
        shared_edits: Callable[[Any, HostFiles], ContainerEdits] = _nothing,
    ) -> Family:
        """The family as its vendor's settings have it handed over: they are what both functions are given first."""
        return replace(
            self,
            delivery=settings.delivery,
            device_edits=partial(device_edits, settings),
            shared_edits=partial(shared_edits, settings),
        )

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


def as_described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """A machine's devices as most node agents register them: ten shares, and cores in percent."""
    return tuple(
        DeviceInfo(
            id=device.uuid or f"{machine.name}-{device.index}",
            index=device.index,
            count=10,
            devmem=device.memory,
            devcore=100,
            type=family.word,
            numa=max(0, device.numa),
            mode="hami-core",
            health=True,
            vendor=family.word,
        )
        for device in machine.devices
    )


class Simulator(Protocol):
    """A vendor's simulated hardware that another process may disturb while it runs."""

    def settings(self) -> Mapping[str, Any]:
        """Vendor settings under which the real driver finds the simulated hardware."""

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault by name (``lost``, ``back``, ``xid``, …); ValueError lists the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """What a vendor has on a node: how its driver is opened, and ``simulate`` sets up a machine to play it with.

    ``present`` is whether the host has such hardware, whatever drives it: a cheap look, which also decides for a vendor
    that nobody has enabled or disabled. ``isolated``: its driver runs in a process of its own, unless somebody has set
    otherwise; for libraries that may take their process down.
    """

    open: Callable[[Any, HostPaths], Driver]
    present: Callable[[Any, HostPaths], bool] = _always
    isolated: bool = False
    simulate: Callable[[Machine, Path], Simulator] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a vendor away from any node.

    ``parity`` is how its answers are compared with HAMi's; ``described`` are the devices that its node agents would
    register on a machine of a profile, of one family; ``machines`` are further names of the vendor in profiles.
    """

    parity: Callable[[], Parity] = Parity
    described: Callable[[Family, Machine], tuple[DeviceInfo, ...]] = as_described
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What a module in ``vendors`` exports as ``VENDOR``. Without ``node`` its own device plugin serves the node."""

    name: str
    title: str
    settings: type[VendorSettings]
    families: Callable[[Any], tuple[Family, ...]]
    node: NodeSide | None = None
    facts: Facts = field(default_factory=Facts)

    @property
    def open(self) -> Callable[[Any, HostPaths], Driver] | None:
        return self.node.open if self.node else None

    @property
    def simulate(self) -> Callable[[Machine, Path], Simulator] | None:
        return self.node.simulate if self.node else None


def serving(
    families: Callable[[Any], tuple[Family, ...]], served: Callable[[Any, Family], Family]
) -> Callable[[Any], tuple[Family, ...]]:
    """All families as a node serves them, each with its other half."""
    return lambda settings: tuple(served(settings, family) for family in families(settings))


def vendor_names() -> tuple[str, ...]:
    """Every module in ``vendors``, sorted."""
    package = importlib.import_module("vendors")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load_vendor(name: str) -> Vendor:
    """Import ``vendors.<name>`` and hand out its ``VENDOR``."""
    names = vendor_names()
    if name not in names:
        raise UnknownVendorError(f"no vendor is named {name!r}", hint=f"choose from: {', '.join(names)}")
    vendor = getattr(importlib.import_module(f"vendors.{name}"), "VENDOR", None)
    if not isinstance(vendor, Vendor) or vendor.name != name:
        raise UnknownVendorError(
            f"vendors.{name} exports no Vendor named {name!r}", hint="see docs/architecture.md, 'A vendor'"
        )
    return vendor
