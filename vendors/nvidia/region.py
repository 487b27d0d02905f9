"""The file in which the processes of one container count their memory: what HAMi-core writes, read without trust.

The container can write every byte of it, at any moment. So it is never mapped; it is read by ranges, sums are bounded
by what the cards have, and names are those that the daemon handed out. The layout follows from size and version
together, since two layouts claim version 1.1.

Limits are written in place: each is an aligned word, which the processes see whole, before or after. None of
HAMi-core's locks is taken. They guard the slots, and not the limits; and who died with one would stop the container.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import opened_shared
from hami_plugin.model.usage import ContainerUsage, DeviceUsage, Pace, UsageState

MAGIC: Final = 19920718
MAX_DEVICES: Final = 16
MAX_PROCESSES: Final = 1024
HEAD_BYTES: Final = 12
SEQLOCK_READS: Final = 3
MEMORY_TOLERANCE: Final = 1.1
"""A process may hold this much of a card's memory in HAMi-core's own count."""
CLOCK_TOLERANCE_S: Final = 60
OLDEST_KERNEL_S: Final = 10 * 365 * 86400
RUNNING, SUSPENDED = 1, 2
ACTIVE_S = 10
"""So long after a kernel's start a container counts as active."""
MARKED = 2
"""What a process writes as it starts a kernel; each look counts it down. -1 holds the container's next ones back."""

ReadAt = Callable[[int, int], bytes]
"""The bytes at an offset, so many at most, as ``os.pread`` gives them. ``OSError`` where they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Offsets in the entry of one process, in bytes; ``seqlock`` and ``utilization`` where the layout has them."""

    size: int
    used: int
    used_stride: int
    monitor_used: int
    status: int
    utilization: int | None = None
    utilization_stride: int = 48
    seqlock: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """Where the fields of a region are: offsets from its start, in bytes. ``size`` leaves out the file's last byte."""

    name: str
    size: int
    device_count: int
    process_count: int
    slot: Slot
    has_last_kernel: bool = True

    @property
    def uuids(self) -> int:
        return self.device_count + 8

    @property
    def memory_limits(self) -> int:
        return self.uuids + 96 * MAX_DEVICES

    @property
    def core_limits(self) -> int:
        return self.memory_limits + 8 * MAX_DEVICES

    @property
    def processes(self) -> int:
        return self.core_limits + 8 * MAX_DEVICES


V0A = RegionLayout(
    name="v0a",
    size=804_680,
    device_count=48,
    process_count=804_664,
    slot=Slot(size=784, used=8, used_stride=40, monitor_used=648, status=776),
    has_last_kernel=False,
)
V0 = RegionLayout(
    name="v0",
    size=1_197_896,
    device_count=48,
    process_count=1_197_880,
    slot=Slot(size=1168, used=8, used_stride=40, monitor_used=648, status=1160, utilization=776, utilization_stride=24),
    has_last_kernel=False,
)
V1_1 = RegionLayout(
    name="v1.1",
    size=2_008_952,
    device_count=56,
    process_count=2_008_896,
    slot=Slot(size=1960, used=8, used_stride=64, monitor_used=1032, status=1928, utilization=1160),
)
V1_1S = RegionLayout(
    name="v1.1s",
    size=2_008_984,
    device_count=88,
    process_count=2_008_928,
    slot=Slot(size=1960, used=16, used_stride=64, monitor_used=1040, status=1936, utilization=1168, seqlock=8),
)
V1_2 = RegionLayout(
    name="v1.2",
    size=2_008_952,
    device_count=56,
    process_count=2_008_896,
    slot=Slot(size=1960, used=8, used_stride=64, monitor_used=1032, status=1928, utilization=1160, seqlock=1936),
)
LAYOUTS = (V0A, V0, V1_1, V1_1S, V1_2)
"""Of HAMi 2.2 to 2.10, the same on x86-64 and aarch64."""
_UNVERSIONED = {one.size: one for one in (V0A, V0)}
_VERSIONED = {(V1_1.size, 1, 1): V1_1, (V1_1S.size, 1, 1): V1_1S, (V1_2.size, 1, 2): V1_2}
MAX_SIZE = max(one.size for one in LAYOUTS) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process on one card; ``total`` is what HAMi-core checks its limit against."""

    context: int
    module: int
    buffer: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSlot:
    """One slot. ``pid`` is the container's, ``host_pid`` the host's or 0.

    By card: its memory, what NVML says of it, and its utilisation in percent.
    """

    pid: int
    host_pid: int
    status: int
    memory: tuple[Memory, ...]
    monitor_used: tuple[int, ...]
    utilization: tuple[int, ...]
    settled: bool = True
    """Nothing was written to the slot while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region's fields as they stand, for as many cards as were asked about; ``device_count`` is its own claim."""

    layout: RegionLayout
    device_count: int
    uuids: tuple[bytes, ...]
    memory_limits: tuple[int, ...]
    core_limits: tuple[int, ...]
    processes: tuple[ProcessSlot, ...]
    utilization_switch: int
    recent_kernel: int
    priority: int
    last_kernel_s: int | None
    """In seconds since the epoch; None where the layout does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why there is nothing to read."""

    state: UsageState
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotted:
    """A card as the daemon gave it to the container: its UUID, its limits (0: none), and the bytes that it has."""

    uuid: str
    memory_limit: int
    core_limit: int
    memory: int


def read_usage(folder: Path, name: str, allotted: Sequence[Allotted], *, now_s: float) -> ContainerUsage:
    """What a container uses by the region ``name`` in its ``folder``; ``OSError`` where that cannot be read."""
    try:
        with opened_shared(folder, name) as file:
            found = read(
                os.fstat(file).st_size, lambda offset, length: os.pread(file, length, offset), devices=len(allotted)
            )
    except FileNotFoundError:
        return ContainerUsage(state=UsageState.ABSENT, detail="no process of the container has used a card yet")
    if isinstance(found, Unread):
        return ContainerUsage(state=found.state, detail=found.detail)
    return usage(found, allotted, now_s=now_s)


def write_limits(folder: Path, name: str, allotted: Sequence[Allotted]) -> None:
    """Give the region these limits, all of them or none. ``HamiError`` where none; ``OSError`` as ``read_usage``.

    A limit below what the processes use would make their free memory negative, which older builds of HAMi-core take
    for all there is. So usage is looked at before, and once more after: a process may have allocated in between.
    """
    with opened_shared(folder, name, access=os.O_RDWR) as file:
        before = _initialised(file, len(allotted))
        _require_room(before, allotted)
        written = {place: old for place, old, new in _words(before, allotted) if old != new}
        try:
            _write_words(file, {place: new for place, _old, new in _words(before, allotted) if place in written})
            _require_taken(file, before.layout, allotted)
        except (HamiError, OSError):
            with suppress(OSError):
                _write_words(file, written)
            raise


def write_pace(folder: Path, name: str, pace: Pace, *, limited: bool) -> None:
    """Let the container's processes go on, or hold them back, and switch their limit of cores. ``OSError`` as above.

    ``limited``: it has one. A region that cannot be read is left alone. Where a process marks a kernel between our look
    and our write, the mark is lost; the kernel's time says the same.
    """
    with opened_shared(folder, name, access=os.O_RDWR) as file:
        layout = _layout(os.fstat(file).st_size, lambda offset, length: os.pread(file, length, offset))
        if isinstance(layout, Unread):
            return
        place = layout.process_count + 4
        now = os.pread(file, 8, place)
        if len(now) == 8:
            switch, recent = struct.unpack("<ii", now)
            for at, old, new in zip(
                (place, place + 4), (switch, recent), _paced(switch, recent, pace, limited=limited), strict=True
            ):
                if old != new:
                    os.pwrite(file, struct.pack("<i", new), at)


def _paced(switch: int, recent: int, pace: Pace, *, limited: bool) -> tuple[int, int]:
    """The switch of the limit of cores, and the mark of kernels, as they are to be."""
    match pace:
        case Pace.HELD_BACK:
            return 1, -1  # newer builds hold nobody back whose switch is off
        case Pace.RELEASED:
            return (1 if limited else switch), max(0, min(recent, MARKED))
        case _:
            return (1 if pace is Pace.LIMITED else 0), max(0, recent - 1)


def _require_taken(file: int, layout: RegionLayout, allotted: Sequence[Allotted]) -> None:
    """The limits are in force, in the region that the container has, and leave room for what it uses."""
    after = _initialised(file, len(allotted))
    _require_room(after, allotted)
    if after.layout != layout or any(old != new for _place, old, new in _words(after, allotted)):
        raise HamiError("the container changes its limits itself", hint="find out what it runs")
    if os.fstat(file).st_nlink != 1:
        raise HamiError("the container was started again just now", hint="ask again")


def _initialised(file: int, devices: int) -> Region:
    found = read(os.fstat(file).st_size, lambda offset, length: os.pread(file, length, offset), devices=devices)
    if isinstance(found, Unread):
        raise HamiError(f"its limits are not where HAMi-core has them: {found.detail}", hint="ask again when it works")
    return found


def _require_room(region: Region, allotted: Sequence[Allotted]) -> None:
    for card, used in zip(allotted, usage(region, allotted, now_s=0).devices, strict=False):
        if used.memory_used > card.memory_limit:
            least = -(-used.memory_used >> 20)
            raise HamiError(
                f"it uses {least} MiB of {card.uuid}, more than {card.memory_limit >> 20} MiB",
                hint=f"ask for {least} MiB or more, or have it free memory first",
            )


def _words(region: Region, allotted: Sequence[Allotted]) -> Iterator[tuple[int, int, int]]:
    """Each limit's offset, its value, and the one that it is to have."""
    layout = region.layout
    for index, card in enumerate(allotted[:MAX_DEVICES]):
        yield layout.memory_limits + 8 * index, region.memory_limits[index], card.memory_limit
        yield layout.core_limits + 8 * index, region.core_limits[index], card.core_limit or 100


def _write_words(file: int, words: Mapping[int, int]) -> None:
    for place, value in words.items():
        if os.pwrite(file, struct.pack("<Q", value), place) != 8:
            raise OSError("the file took a part of a limit")


def read(size: int, read_at: ReadAt, *, devices: int) -> Region | Unread:
    """Read what a region of ``size`` bytes says of its first ``devices`` cards, 16 at most.

    What ``read_at`` raises is not caught.
    """
    layout = _layout(size, read_at)
    if isinstance(layout, Unread):
        return layout
    fixed = read_at(layout.device_count, layout.processes - layout.device_count)
    tail = read_at(layout.process_count, layout.size - layout.process_count)
    if len(fixed) < layout.processes - layout.device_count or len(tail) < layout.size - layout.process_count:
        return Unread(state=UsageState.CORRUPT, detail="the file was truncated while it was read")
    return _region(layout, fixed, tail, read_at, min(devices, MAX_DEVICES))


def _layout(size: int, read_at: ReadAt) -> RegionLayout | Unread:
    head = read_at(0, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return Unread(state=UsageState.CORRUPT, detail=f"the file has {len(head)} bytes")
    magic, major, minor = struct.unpack("<iII", head)
    if magic != MAGIC:
        return Unread(state=UsageState.UNINITIALISED, detail="no process has initialised it")
    layout = _UNVERSIONED.get(size - 1) or _VERSIONED.get((size - 1, major, minor))
    if layout is None:
        known = size - 1 in _UNVERSIONED or any(size - 1 == one for one, _, _ in _VERSIONED)
        truncated = size < MAX_SIZE and not known
        return Unread(
            state=UsageState.CORRUPT if truncated else UsageState.UNSUPPORTED,
            detail=f"{size} bytes of version {major}.{minor} are no layout of HAMi-core's that is known",
        )
    return layout


def _region(layout: RegionLayout, fixed: bytes, tail: bytes, read_at: ReadAt, devices: int) -> Region | Unread:
    start = layout.device_count
    processes: list[ProcessSlot] = []
    count, switch, recent, priority = struct.unpack_from("<iiii", tail)
    for index in range(max(0, min(count, MAX_PROCESSES))):
        process = _process(layout, layout.processes + index * layout.slot.size, devices, read_at)
        if process is None:
            return Unread(state=UsageState.CORRUPT, detail="the file was truncated while it was read")
        processes.append(process)
    return Region(
        layout=layout,
        device_count=struct.unpack_from("<Q", fixed)[0],
        uuids=tuple(
            fixed[place : place + 96].partition(b"\0")[0]
            for place in range(layout.uuids - start, layout.uuids - start + 96 * devices, 96)
        ),
        memory_limits=struct.unpack_from(f"<{devices}Q", fixed, layout.memory_limits - start),
        core_limits=struct.unpack_from(f"<{devices}Q", fixed, layout.core_limits - start),
        processes=tuple(processes),
        utilization_switch=switch,
        recent_kernel=recent,
        priority=priority,
        last_kernel_s=struct.unpack_from("<Q", tail, 16)[0] if layout.has_last_kernel else None,
    )


def _process(layout: RegionLayout, place: int, devices: int, read_at: ReadAt) -> ProcessSlot | None:
    """One slot, read again while its owner writes it, three times at most: a dead writer never ends."""
    slot, data, settled = layout.slot, b"", False
    for _ in range(SEQLOCK_READS):
        data = read_at(place, slot.size)
        if len(data) < slot.size:
            return None
        settled = slot.seqlock is None or _is_settled(data, slot.seqlock, read_at(place + slot.seqlock, 8))
        if settled:
            break
    pid, host_pid = struct.unpack_from("<ii", data)
    return ProcessSlot(
        pid=pid,
        host_pid=host_pid,
        status=struct.unpack_from("<i", data, slot.status)[0],
        memory=tuple(_memory(data, slot.used + device * slot.used_stride) for device in range(devices)),
        monitor_used=struct.unpack_from(f"<{devices}Q", data, slot.monitor_used),
        utilization=tuple(_utilization(slot, data, device) for device in range(devices)),
        settled=settled,
    )


def _is_settled(data: bytes, place: int, after: bytes) -> bool:
    """Whether the slot's counter stood still at an even number. With two writers at once that is no proof."""
    return data[place : place + 8] == after and after[0] % 2 == 0


def _memory(data: bytes, place: int) -> Memory:
    context, module, buffer, _offset, total = struct.unpack_from("<5Q", data, place)
    return Memory(context=context, module=module, buffer=buffer, total=total)


def _utilization(slot: Slot, data: bytes, device: int) -> int:
    if slot.utilization is None:
        return 0
    return int(struct.unpack_from("<Q", data, slot.utilization + device * slot.utilization_stride + 16)[0])


def usage(region: Region, allotted: Sequence[Allotted], *, now_s: float) -> ContainerUsage:
    """What a container uses of the cards that it was given, in the order of ``allotted``, which is the region's, too.

    A claim that cannot be true is left out and counted: a slot with more memory than its card has, a utilisation above
    100 %, and another card's UUID. ``now_s`` is in seconds since the epoch.
    """
    live = [process for process in region.processes if process.status in (RUNNING, SUSPENDED)]
    sums = [_device_usage(index, card, live) for index, card in enumerate(allotted[:MAX_DEVICES])]
    foreign = sum(bool(name) and name != card.uuid.encode() for name, card in zip(region.uuids, allotted, strict=False))
    return ContainerUsage(
        state=UsageState.OK,
        layout=region.layout.name,
        devices=tuple(device for device, _ in sums),
        processes=len(live),
        last_kernel_s=_plausible(region.last_kernel_s, now_s),
        active=_active(region, now_s),
        corrupt_slots=sum(corrupt for _, corrupt in sums),
        foreign_uuids=foreign,
        unsettled_slots=sum(not process.settled for process in live),
        changed_limits=tuple(_changed(region, allotted)),
    )


def _active(region: Region, now_s: float) -> bool:
    """By the mark of a kernel since the last look but one, which newer builds do not always set, or by its time."""
    last = _plausible(region.last_kernel_s, now_s)
    return region.recent_kernel >= MARKED or (last is not None and now_s - last < ACTIVE_S)


def _device_usage(index: int, card: Allotted, live: Sequence[ProcessSlot]) -> tuple[DeviceUsage, int]:
    """The usage of one card, and how many of the processes' counts for it cannot be true."""
    counted = [process.memory[index] for process in live if index < len(process.memory)]
    true = [one for one in counted if max(one.total, one.context, one.module, one.buffer) <= _most(card)]
    percent = sum(share for process in live for share in process.utilization[index : index + 1] if share <= 100)
    used = DeviceUsage(
        uuid=card.uuid,
        memory_used=min(sum(one.total for one in true), card.memory),
        memory_limit=card.memory_limit,
        context=sum(one.context for one in true),
        module=sum(one.module for one in true),
        buffer=sum(one.buffer for one in true),
        utilization=percent,
        core_limit=card.core_limit,
    )
    return used, len(counted) - len(true)


def _most(card: Allotted) -> float:
    return card.memory * MEMORY_TOLERANCE


def _plausible(seconds: int | None, now_s: float) -> float | None:
    """When the last kernel started, or None where that was never, or cannot have been then."""
    if not seconds or not now_s - OLDEST_KERNEL_S <= seconds <= now_s + CLOCK_TOLERANCE_S:
        return None
    return min(float(seconds), now_s)


def _changed(region: Region, allotted: Sequence[Allotted]) -> list[str]:
    """UUIDs of cards whose limits in the region are not those that the daemon gave."""
    return [
        card.uuid
        for card, memory, cores in zip(allotted, region.memory_limits, region.core_limits, strict=False)
        if memory != card.memory_limit or cores != (card.core_limit or 100)
    ]
