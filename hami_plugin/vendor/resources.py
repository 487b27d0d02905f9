"""By which extended resources a family's devices are asked for and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """The extended resources of a family; ``count`` is the one that the kubelet knows."""

    count: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    priority: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Another resource by which the kubelet counts a family's devices, such as their cores.

    ``of_device`` is how many of them a device has, ``of_grant`` how many a grant takes.
    """

    resource: str
    of_device: Callable[[Device], int]
    of_grant: Callable[[Grant], int]
