"""Time to register with the kubelet: after the daemon's start, and after the kubelet's restart."""

from __future__ import annotations

import time
from pathlib import Path

import grpc

from bench import imports
from bench.echo import METHOD, echo_server
from bench.figures import Figure, ratio
from bench.processes import running
from bench.testbed import Node, open_testbed

CPU_LIMIT, START_LIMIT, RESTART_LIMIT = 2.5, 3.2, 30.0
"""Start: compared with an interpreter that imports the same libraries. Restart: compared with a server's first answer.
Without file events the daemon would check once a second, some hundred times as long."""
DOWN_S = 1.5
"""How long a kubelet stays away if it does not return at once."""


async def registration(*, repeats: int) -> list[Figure]:
    """From exec to Register, and from a kubelet's restart to Register. The median of ``repeats`` counts."""
    starts, cpus, bare, bare_cpus, quick, slow, first = [], [], [], [], [], [], []
    async with open_testbed(Node()) as testbed:
        for _ in range(repeats):
            seconds, cpu = await libraries(testbed.packages)
            bare.append(seconds)
            bare_cpus.append(cpu)
            await testbed.stop_daemon()
            starts.append(await testbed.start_daemon())
            cpus.append(testbed.start_cpu)
        for number in range(repeats):
            first.append(await _first_answer(testbed.directory / f"first-{number}"))
            quick.append(await testbed.restart_kubelet(0.0))
            slow.append(await testbed.restart_kubelet(DOWN_S))
    return [
        _beside("Start to Register", "s of CPU", cpus, bare_cpus, CPU_LIMIT),
        _beside("Start to Register, by the clock", "s", starts, bare, START_LIMIT),
        _beside("Kubelet restart to Register", "s", quick, first, RESTART_LIMIT),
        _beside(f"The same, kubelet away for {DOWN_S:g} s", "s", slow, first, RESTART_LIMIT),
    ]


async def libraries(packages: Path) -> tuple[float, float]:
    """Wall-clock and CPU seconds in which an interpreter imports the daemon's libraries."""
    began = time.monotonic()
    async with running(Path(imports.__file__), imports.LIBRARIES, packages=packages) as line:
        return time.monotonic() - began, float(line)


async def _first_answer(socket: Path) -> float:
    """Seconds until a new gRPC server has answered its first call."""
    began = time.monotonic()
    server = echo_server(socket, b"")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        await channel.unary_unary(METHOD, bytes, bytes)(b"")
    seconds = time.monotonic() - began
    await server.stop(None)
    return seconds


def _beside(name: str, unit: str, own: list[float], bare: list[float], limit: float) -> Figure:
    note = f"{_listed(own)} {unit}; baseline {_listed(bare)}"
    return Figure(name=f"{name} / baseline", value=ratio(own, bare), unit="x", limit=limit, note=note)


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in seconds)
