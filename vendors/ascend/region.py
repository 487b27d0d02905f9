"""The file in which HAMi's core for NPUs counts a container's memory, read without mapping it and without trusting it.

The library has one limit for all NPUs of a container, and a place for each of its processes. Nothing marks a version.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hami_plugin.host.paths import opened_shared
from hami_plugin.model.placement import Share
from hami_plugin.model.usage import ContainerUsage, DeviceUsage, UsageState

FILE: Final = "vnpu_local_shmem"
LAYOUT: Final = "vnpu"
PROCESSES_AT, PROCESS_BYTES, MAX_PROCESSES = 1080, 80, 64
MAX_DEVICES = 8
MEMORY_TOLERANCE = 1.1
_LIMIT = struct.Struct("<Q")
_PROCESS = struct.Struct(f"<i4x{MAX_DEVICES}QI")
"""Its id, the bytes that it has of each of the container's NPUs, and whether it is there."""


def read_usage(folder: Path, shares: Sequence[Share]) -> ContainerUsage:
    """What a container uses of its NPUs, in the order in which it sees them. ``OSError`` where that cannot be read."""
    try:
        with opened_shared(folder, FILE) as file:
            content = os.pread(file, PROCESSES_AT + PROCESS_BYTES * MAX_PROCESSES, 0)
    except FileNotFoundError:
        return ContainerUsage(state=UsageState.ABSENT, detail="no process of the container has used an NPU yet")
    if len(content) < PROCESSES_AT + PROCESS_BYTES:
        return ContainerUsage(state=UsageState.CORRUPT, detail=f"the file has {len(content)} bytes")
    return usage(content, shares)


def usage(content: bytes, shares: Sequence[Share]) -> ContainerUsage:
    """By the file's content. A process with more memory than its NPU has is left out of that, and counted."""
    whole = range(PROCESSES_AT, len(content) - PROCESS_BYTES + 1, PROCESS_BYTES)
    found = (_PROCESS.unpack_from(content, place) for place in whole)
    processes = [used for pid, *used, there in found if pid > 0 and there]
    (limit,) = _LIMIT.unpack_from(content)
    devices, corrupt = [], 0
    for index, share in enumerate(shares[:MAX_DEVICES]):
        memory = share.device.memory << 20
        amounts = [used[index] for used in processes]
        true = [amount for amount in amounts if amount <= memory * MEMORY_TOLERANCE]
        corrupt += len(amounts) - len(true)
        devices.append(
            DeviceUsage(
                uuid=share.device.uuid,
                memory_used=min(sum(true), memory),
                memory_limit=min(limit, memory),
                utilization=None,
                core_limit=share.grant.cores,
                buffer=min(sum(true), memory),
            )
        )
    return ContainerUsage(
        state=UsageState.OK,
        layout=LAYOUT,
        devices=tuple(devices),
        processes=len(processes),
        corrupt_slots=corrupt,
    )
