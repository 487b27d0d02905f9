"""Who uses a device by the driver's own list of processes, which no container can forge: containers, and others. Pure.

HAMi-core counts what programs ask it for; a static program, or one without the preload, asks the driver alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hami_plugin.allocation.identity import Key
from hami_plugin.model.usage import DeviceLoad, DeviceProcess
from hami_plugin.model.views import PodView
from hami_plugin.node_status.occupancy import DeviceOccupancy, Portion

FindPod = Callable[[str], PodView | None]
"""A pod of this node by its UID."""


class Outsider(StrEnum):
    """Whose a process is that no container with a share of the device has."""

    NO_POD = "no pod"
    OTHER_POD = "another pod"
    UNKNOWN = "unknown"
    """It has ended meanwhile, or its cgroup is not to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTotals:
    """So many processes, with so many bytes of the device as far as that is told."""

    processes: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsers:
    """All that use a device. Each container with a share of it is there, if with nothing."""

    containers: Mapping[Key, ProcessTotals]
    outsiders: Mapping[Outsider, ProcessTotals]


def device_users(one: DeviceOccupancy, load: DeviceLoad | None, pod: FindPod) -> DeviceUsers | None:
    """Who uses the device now; None where its driver does not list processes."""
    if load is None or load.processes is None:
        return None
    found: defaultdict[Key | Outsider, list[DeviceProcess]] = defaultdict(list)
    for process in load.processes:
        found[_user(one.portions, process, pod)].append(process)
    return DeviceUsers(
        containers={portion.held.key: _measured(found[portion.held.key]) for portion in one.portions},
        outsiders={kind: _measured(found[kind]) for kind in Outsider},
    )


def _user(portions: Sequence[Portion], process: DeviceProcess, pod: FindPod) -> Key | Outsider:
    if process.owner is None:
        return Outsider.UNKNOWN
    if not process.owner.pod:
        return Outsider.NO_POD
    theirs = [portion.held for portion in portions if portion.held.uid == process.owner.pod]
    if not theirs:
        return Outsider.OTHER_POD
    known = pod(process.owner.pod)
    name = known.running.get(process.owner.container, "") if known else ""
    if name:
        return next((held.key for held in theirs if held.container == name), Outsider.OTHER_POD)
    return theirs[0].key if len(theirs) == 1 else Outsider.UNKNOWN


def _measured(processes: Sequence[DeviceProcess]) -> ProcessTotals:
    return ProcessTotals(processes=len(processes), memory=sum(one.memory_used or 0 for one in processes))
