"""What it costs an idle daemon to look at what a hundred containers use, beside one that never looks."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Figure
from bench.footprint import SETTLE_S, Idle, bare_loop
from bench.kubelet import Calls, Shares
from bench.processes import cpu_seconds, memory
from bench.testbed import Node, Testbed, open_testbed
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.model.placement import Grant
from vendors.nvidia.region import MAGIC, RUNNING, V1_2

CONTAINERS, PROCESSES = 100, 4
NODE = Node(split=20)
CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
MEMORY_MIB = 400
ADDED_MIB, ADDED_LOOPS = 16.0, 25.0
"""Limits: what looking adds in MiB, and in CPU as a multiple of a bare loop's."""
MODES: Mapping[str, Mapping[str, object]] = {
    "never looks": {"usageSeconds": 0},
    "looks": {"usageSeconds": 5, "hamiMetrics": True},
    "looks and holds back": {"usageSeconds": 5, "hamiMetrics": True, "priorityLoop": True},
}


async def monitoring(*, seconds: float) -> list[Figure]:
    """Daemons with a hundred containers, left alone for ``seconds`` side by side."""
    daemons = asyncio.gather(*(_left_alone(mode, seconds) for mode in MODES.values()))
    (without, *others), bare = await asyncio.gather(daemons, bare_loop(seconds))
    figures = [
        Figure(
            name=f"{CONTAINERS} containers, {next(iter(MODES))}",
            value=without.memory.resident,
            unit="MiB",
            note=f"{without.cpu:.2g} % of a core; the bare loop's {bare:.2g} %",
        )
    ]
    for name, one in zip(list(MODES)[1:], others, strict=True):
        added = one.cpu - without.cpu
        figures += [
            Figure(
                name=f"Memory added by one that {name}",
                value=one.memory.resident - without.memory.resident,
                unit="MiB",
                limit=ADDED_MIB,
            ),
            Figure(
                name="  its CPU added / the bare loop's",
                value=max(0.0, added) / bare,
                unit="x",
                limit=ADDED_LOOPS,
                note=f"{added:.2g} % of a core, over {seconds:g} s",
            ),
        ]
    return figures


async def _left_alone(mode: Mapping[str, object], seconds: float) -> Idle:
    async with open_testbed(NODE, mode) as testbed:
        await testbed.start_daemon()
        await testbed.published()
        with ExitStack() as stack:
            await _fill(testbed, Calls(testbed.socket, stack))
        await testbed.cluster.recorded()
        await asyncio.sleep(SETTLE_S)
        before = cpu_seconds(testbed.pid)
        await asyncio.sleep(seconds)
        spent = cpu_seconds(testbed.pid) - before
        return Idle(memory=memory(testbed.pid), cpu=100 * spent / seconds)


async def _fill(testbed: Testbed, daemon: Calls) -> None:
    """A hundred pods that run, each with a few processes on its card."""
    shares = Shares(testbed.uuids, testbed.node)
    for number in range(CONTAINERS):
        uuid = testbed.uuids[number % len(testbed.uuids)]
        grant = Grant(uuid=uuid, device_type=testbed.family.resources.device_type, memory=MEMORY_MIB, cores=0)
        await testbed.cluster.create_pod(f"pod-{number}", [[grant]], lock=True)
        ids, _seconds = daemon.prefer(shares.free, 1)
        shares.claim(ids)
        answer, _seconds = daemon.allocate(ids)
        _works(answer, uuid)
        await testbed.cluster.set_running(f"pod-{number}")


def _works(answer: pb.AllocateResponse, uuid: str) -> None:
    """The container's region, as HAMi-core of 2026 has it while processes run."""
    (container,) = answer.container_responses
    inside = Path(container.envs[CACHE])
    folder = next(one.host_path for one in container.mounts if one.container_path == str(inside.parent))
    data = bytearray(V1_2.size + 1)
    struct.pack_into("<iII", data, 0, MAGIC, 1, 2)
    struct.pack_into("<Q96s", data, V1_2.device_count, 1, uuid.encode())
    struct.pack_into("<Q", data, V1_2.memory_limits, MEMORY_MIB << 20)
    struct.pack_into("<Q", data, V1_2.core_limits, 100)
    struct.pack_into("<ii", data, V1_2.process_count, PROCESSES, 1)
    for slot in range(PROCESSES):
        place = V1_2.processes + slot * V1_2.slot.size
        struct.pack_into("<ii", data, place, 100 + slot, 1000 + slot)
        struct.pack_into("<Q", data, place + V1_2.slot.used + 32, 50 << 20)
        struct.pack_into("<i", data, place + V1_2.slot.status, RUNNING)
    (Path(folder) / inside.name).write_bytes(data)
