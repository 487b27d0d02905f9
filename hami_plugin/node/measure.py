"""How much of a device grants take, as the device's family counts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.policy.overcommit import Total
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.vendor import Family

ALL_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One device's. Cores are a number here, also where grants have them as a mask."""

    family: Family
    device: Device
    total: Total

    @classmethod
    def of(cls, family: Family, device: Device, *, masks: bool) -> Measure | None:
        """By what the device registers. None where nobody can share it, which the kubelet's ids see to."""
        if family.node.replicas(device) <= 1 and not family.resources.units:
            return None
        info = family.node.register(device, False)
        return cls(family=family, device=device, total=registered(family, info, masks=masks))

    def fits(self, grants: Iterable[Sequence[Grant]]) -> bool:
        """Whether the device has enough for all of these containers at once, each with no limit taken for all of it."""
        uuid, count, memory, cores = self.device.uuid, self.family.resources.core_count, 0, 0
        for grant in (one for container in grants for one in container if one.uuid == uuid):
            memory += grant.memory or self.total.memory
            cores += count(grant.cores)
        return self.total.holds(memory, cores)

    def together(self, grants: Sequence[Grant], *, limitless: bool = False) -> Grant:
        """All that a container has of the device. Where memory counts, none means all of it, unless ``limitless``."""
        own = [grant for grant in grants if grant.uuid == self.device.uuid]
        every = self.total.memory if self.family.resources.memory and not limitless else 0
        return Grant(
            uuid=self.device.uuid,
            word=self.family.word,
            memory=sum(grant.memory or every for grant in own),
            cores=sum(self.family.resources.core_count(grant.cores) for grant in own),
        )

    def unit(self, what: str) -> str:
        """What ``memory`` and ``cores`` are counted in, for people."""
        if what == "memory":
            return "MiB of memory" if self.family.resources.memory else "% of memory"
        return "% of cores" if self.family.node.every_core(self.device) == ALL_PERCENT else "cores"


def registered(family: Family, info: DeviceInfo, *, masks: bool) -> Total:
    """What of a device is limited. ``masks``: also cores that are bits."""
    limited = family.resources.cores and (masks or not family.resources.cores_are_bits)
    return Total(memory=info.devmem, cores=family.resources.core_count(info.devcore) if limited else 0)
