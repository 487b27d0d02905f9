"""What a scheduling rule looks at: devices with what is taken of them, and the circumstances of the pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hami_plugin.model.links import NO_LINKS, Links
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.linked import Solved
from hami_plugin.policy.listings import Listings
from hami_plugin.protocol.register import DeviceInfo

ORDER_KEY = "hami.io/gpu-scheduler-policy"

Piece = tuple[Grant, ...]
"""What one container has."""

Given = Mapping[str, tuple[Piece, ...]]
"""What a pod has so far by family word: one piece for each container, init containers first."""


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
class DeviceState:
    """A device as registered, and what is taken of it. ``memory`` in MiB, ``cores`` in the family's unit.

    ``notes`` are the family's own words about the device: what it registered, then what bookings made of it.
    ``whole``: its node hands it out whole or not at all.
    """

    info: DeviceInfo
    slots: int = 0
    memory: int = 0
    cores: int = 0
    tenants: tuple[Tenant, ...] = ()
    slices: tuple[Slice, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False

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
            whole=self.whole,
        )


def idle(info: DeviceInfo, *, whole: bool = False) -> DeviceState:
    """A registered device that nobody uses. ``whole``: its node hands it out whole or not at all."""
    return DeviceState(info=info, notes=info.custom or {}, whole=whole)


class Charge(NamedTuple):
    """What one device is billed for one container. ``word`` stands in the annotation, unless it is the family's."""

    memory: int = 0
    cores: int = 0
    word: str = ""
    notes: Mapping[str, Any] | None = None


class Candidate(NamedTuple):
    """A device that would serve, and its bill."""

    state: DeviceState
    charge: Charge

    @property
    def uuid(self) -> str:
        return self.state.info.id

    def grant(self, word: str) -> Grant:
        info, charge = self.state.info, self.charge
        return Grant(
            uuid=info.id,
            word=charge.word or word,
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
    links: Links = NO_LINKS
    given: Given = field(default_factory=dict)
    quota: Quota = field(default_factory=Quota)
    order: str = "spread"
    states: Sequence[DeviceState] = ()
    solved: Solved | None = None
    listings: Listings | None = field(default=None, compare=False, repr=False)

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
            solved=self.solved,
            listings=self.listings,
        )

    @property
    def lists(self) -> Listings:
        """What the pod's annotations list."""
        return self.listings or Listings(self.pod.annotations)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the device order in force: ``binpack``, ``spread``, ``numa``, ``mutex``, ``topology-aware``."""
        return self.lists.words(self.pod.annotations.get(ORDER_KEY, self.order))

    @property
    def inits(self) -> int:
        """How many of the pod's containers are plain init containers, which never run beside another container."""
        return sum(container.alone for container in self.pod.containers)
