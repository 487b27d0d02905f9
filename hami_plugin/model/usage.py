"""What containers use of the devices that they were given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UsageState(StrEnum):
    """Whether a container's usage could be read."""

    ABSENT = "absent"
    """The container has not used a device yet."""
    UNINITIALISED = "uninitialised"
    OK = "ok"
    UNSUPPORTED = "unsupported_layout"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"


class Pace(StrEnum):
    """Whether a container's processes may start work on their devices now, and whether their cores are limited."""

    FREE = "free"
    """Nobody of the same priority works beside it: its limit of cores rests."""
    LIMITED = "limited"
    HELD_BACK = "held back"
    """A container of a higher priority works on one of its devices."""
    RELEASED = "released"
    """Nobody decides about priorities any more: its limit of cores holds, as at its start."""


MAX_PROCESSES = 1024
"""Of one device. What a driver lists beyond is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOwner:
    """The UID of the pod that a process is of, and the runtime's id of the container; empty for none."""

    pod: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that works on a device. ``memory_used`` in bytes, where it is told. ``owner`` is None if unknown."""

    pid: int
    memory_used: int | None
    owner: ProcessOwner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """What the hardware itself says of a device: bytes in use, percent of the time in which it, or its memory, was
    busy, and which processes work on it. None is what it does not tell.
    """

    memory_used: int | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    processes: tuple[DeviceProcess, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """One container's use of one device, in bytes and percent of the whole device; a limit of 0 is none.

    ``utilization`` sums up the container's processes and may exceed 100; None is unknown. ``context``, ``module`` and
    ``buffer`` are parts of ``memory_used``.
    """

    uuid: str
    memory_used: int
    memory_limit: int
    utilization: int | None
    core_limit: int
    context: int = 0
    module: int = 0
    buffer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUsage:
    """What one container uses, and how far its own word can be taken.

    ``last_kernel_s`` is in seconds since the epoch. ``changed_limits`` are the UUIDs of devices whose limits are not
    those that the daemon gave. ``active``: it has started work on a device within the last seconds.
    """

    state: UsageState
    detail: str = ""
    layout: str = ""
    devices: tuple[DeviceUsage, ...] = ()
    processes: int = 0
    last_kernel_s: float | None = None
    active: bool = False
    corrupt_slots: int = 0
    foreign_uuids: int = 0
    unsettled_slots: int = 0
    changed_limits: tuple[str, ...] = ()
