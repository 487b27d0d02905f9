"""How much of each device is given to whom: one measure for every family, whatever it counts in.

Families write memory in MiB or in percent, and cores in percent, as a number, or as a mask. Here memory is in MiB, and
cores are the share of all of a device's cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Device, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.scheduler.engine.devices import sum_grants


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What one container has of one device: ``memory`` in MiB, ``cores`` from 0 (none reserved) to 1 (all)."""

    held: HeldShare
    memory: float
    cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOccupancy:
    """A device with all that is given of it. ``memory`` (MiB), ``cores`` (the family's own units) and ``shares`` are
    what is advertised, ``handed`` how many of the shares are with containers.
    """

    source: FamilySource
    device: Device
    memory: int
    cores: int
    shares: int
    handed: int
    portions: tuple[Portion, ...]

    @property
    def memory_taken(self) -> float:
        """MiB that pods have."""
        return sum(max(_together(pod, "memory")) for pod in self.pods())

    @property
    def cores_taken(self) -> float:
        """Share of the device's cores that pods have."""
        return sum(max(_together(pod, "cores")) for pod in self.pods())

    def pods(self) -> Iterable[Sequence[Portion]]:
        """The portions of each pod."""
        pods: defaultdict[str, list[Portion]] = defaultdict(list)
        for portion in self.portions:
            pods[portion.held.uid].append(portion)
        return pods.values()


def device_occupancy(sources: Iterable[FamilySource], held: Iterable[HeldShare]) -> Iterator[DeviceOccupancy]:
    """Every device of every family that this node has, each once."""
    given: defaultdict[tuple[str, str], list[HeldShare]] = defaultdict(list)
    for one in held:
        for uuid in {grant.uuid for grant in one.grants}:
            given[one.resource, uuid].append(one)
    for source in sources:
        for device in {device.uuid: device for device in source.snapshot.value.devices}.values():
            try:
                whole = _occupied(source, device, given)
            except HamiError:  # logged and counted where it arose; the other vendors are shown all the same
                continue
            yield whole


def _occupied(
    source: FamilySource, device: Device, given: Mapping[tuple[str, str], Sequence[HeldShare]]
) -> DeviceOccupancy:
    family, uuid = source.family, device.uuid
    info = family.node.register(device, False)
    names = (family.resources.count, *(units.resource for units in family.resources.units))
    # Counted by devices, cores and memory, a container has asked for each of them, and has what it has once.
    whose = {(one.uid, one.container): one for name in names for one in given.get((name, uuid), ())}
    memory = info.devmem if family.resources.memory and info.devmem else device.memory
    ids = (held_id for one in given.get((names[0], uuid), ()) for held_id in one.ids)
    return DeviceOccupancy(
        source=source,
        device=device,
        memory=memory,
        cores=family.resources.core_count(info.devcore),
        shares=family.node.replicas(device),
        handed=len({held_id for held_id in ids if physical_id(held_id) == uuid}),
        portions=tuple(_portion(source, device, one, memory, info.devmem) for one in whose.values()),
    )


def _portion(source: FamilySource, device: Device, held: HeldShare, memory: int, counted: int) -> Portion:
    """``counted`` is all of the device's memory as grants count it; 0 where they do not, and it goes with the cores."""
    family = source.family
    grant = sum_grants([tuple(grant for grant in held.grants if grant.uuid == device.uuid)])[0]
    every_core = max(1, family.resources.core_count(family.node.every_core(device)))
    cores = family.resources.core_count(grant.cores) / every_core if _limited(grant) else 1.0
    if counted:
        return Portion(held=held, memory=memory * (grant.memory or counted) / counted, cores=cores)
    return Portion(held=held, memory=memory * cores, cores=cores)


def _limited(grant: Grant) -> bool:
    """Whether a container has a limit; else it has the whole device."""
    return bool(grant.memory or grant.cores)


def _together(portions: Sequence[Portion], what: str) -> tuple[float, float]:
    """The most that a plain init container has, which the others have again, and what those have together."""
    early = [getattr(portion, what) for portion in portions if portion.held.init]
    late = [getattr(portion, what) for portion in portions if not portion.held.init]
    return max(early, default=0.0), sum(late)
