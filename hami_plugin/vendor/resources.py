"""By which extended resources a family's devices are asked for and counted, and what their amounts mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.decisions import one_id


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
