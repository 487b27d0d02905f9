"""The cost of one hostile request to the scheduler process: the time without other answers, CPU, and memory.

The process is real, with a simulated API server and many nodes. While it works on a hostile request, ``/healthz`` is
polled: the CPU time of the loop's thread during the longest poll is how long the event loop was held, without the time
of other processes. It is compared with ``json.loads`` of the largest review that the scheduler accepts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.figures import Figure
from bench.occupation import COUNT, cluster
from hami_plugin.demo.node import reserved_port
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import RESOURCES

NODES = 5000
MAX_RATIO = 2.0
"""So many times as long as that may one request hold the event loop."""
REVIEW = 3 << 20
REFUSED = 4.0
"""The limit for the CPU time of a review with too many containers, likewise."""
LIST = 250 * 1024
CONTAINERS = 10_000
SENDERS, BODY = 100, 8 << 20
SETTLED_S = 1.0
HURRY_S = 600.0


@dataclass(kw_only=True)
class Subject:
    """The scheduler process under load."""

    server: SimulatedApiServer
    pid: int
    port: int
    session: aiohttp.ClientSession
    names: Sequence[str]
    number: int = 0
    silent_ms: list[float] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def probe(self) -> None:
        """Poll ``/healthz``."""
        while True:
            began = loop_ms(self.pid)
            async with self.session.get(self.url("/healthz")) as answer:
                await answer.read()
            self.silent_ms.append(loop_ms(self.pid) - began)
            await asyncio.sleep(0.001)

    async def filtered(self, annotations: Mapping[str, str]) -> tuple[float, float, str]:
        """One pod with these annotations: the longest silence in ms, the CPU in s, and what became of it."""
        self.number += 1
        pod = self.server.create_pod(_pod(f"p{self.number}", annotations))
        silent, cpu, answer = await self._asked("/filter", {"Pod": pod, "NodeNames": list(self.names)})
        failed = answer.get("FailedNodes") or {}
        why = answer.get("Error") or answer.get("message") or next(iter(failed.values()), "")
        return silent, cpu, "placed" if answer.get("NodeNames") else str(why)[:60]

    async def reviewed(self, pod: Mapping[str, Any]) -> tuple[float, float, str]:
        request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "bench", "object": pod}
        silent, cpu, answer = await self._asked("/webhook", {"kind": "AdmissionReview", "request": request})
        response = answer.get("response") or {}
        return silent, cpu, "allowed" if response.get("allowed") else str(response.get("status") or answer)[:60]

    async def _asked(self, path: str, request: Mapping[str, Any]) -> tuple[float, float, dict[str, Any]]:
        body = json.dumps(request).encode()
        await asyncio.sleep(SETTLED_S)
        before = cpu_seconds(self.pid)
        self.silent_ms.clear()
        async with self.session.post(self.url(path), data=body) as reply:
            answer = await reply.json()
        await asyncio.sleep(0.05)
        return max(self.silent_ms), cpu_seconds(self.pid) - before, answer


async def measure(*, nodes: int = NODES) -> list[Figure]:
    """Filters with endless lists, a review with endless containers, and bodies that never end."""
    figures: list[Figure] = []
    async with strained(nodes) as subject:
        probing = asyncio.create_task(subject.probe())
        try:
            names = ",".join(f"T{number:05}" for number in range(LIST // 7))
            await subject.filtered({})
            for what, annotations in (
                ("a plain pod", {}),
                ("250 KiB of nvidia.com/use-gputype", {"nvidia.com/use-gputype": names}),
                ("250 KiB of nvidia.com/nouse-gpuuuid", {"nvidia.com/nouse-gpuuuid": names}),
                ("250 KiB of hami.io/gpu-scheduler-policy", {"hami.io/gpu-scheduler-policy": names}),
            ):
                parsing = _parsing()
                silent, cpu, became = await subject.filtered(annotations)
                about = f"filter of {what}, {nodes:,} nodes"
                figures += [_silence(about, silent / parsing, became), Figure(name="  CPU", value=cpu, unit="s")]
            parsing = _parsing()
            silent, cpu, became = await subject.reviewed(_many(CONTAINERS))
            figures += [_silence(f"review of {CONTAINERS:,} containers", silent / parsing, became)]
            figures += [Figure(name="  CPU / parsing", value=1000 * cpu / parsing, unit="x", limit=REFUSED)]
            parsing = _parsing()
            silent, cpu, became = await subject.reviewed(_many(512))
            figures += [
                _silence("review of 512 containers", silent / parsing, became),
                Figure(name="  CPU", value=cpu, unit="s"),
            ]
            figures.append(await _unfinished(subject))
        finally:
            probing.cancel()
            await asyncio.wait([probing])
    return [Figure(name="Parsing a review of 3 MiB", value=parsing, unit="ms", note="of a CPU"), *figures]


def _silence(name: str, silent: float, note: str) -> Figure:
    note = f"longest silence of /healthz beside parsing; {note}"
    return Figure(name=f"{name} / parsing", value=silent, unit="x", limit=MAX_RATIO, note=note)


def _parsing() -> float:
    """CPU milliseconds of this process for the largest review: the minimum of several, because others slow some."""
    body = json.dumps(_many(CONTAINERS))
    times = []
    for _ in range(5):
        began = time.process_time()
        json.loads(body)
        times.append(time.process_time() - began)
    return 1000 * min(times) * REVIEW / len(body)


async def _unfinished(subject: Subject) -> Figure:
    """The growth of memory while many clients send a large body that never ends."""
    before = resident(subject.pid)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(_send(subject.port, stack) for _ in range(SENDERS)))
        most = resident(subject.pid)
        for _ in range(20):
            await asyncio.sleep(0.1)
            most = max(most, resident(subject.pid))
    grown = (most - before) / (1 << 20)
    return Figure(name=f"{SENDERS} unfinished bodies of 8 MiB", value=grown, unit="MiB", limit=64, note="more memory")


async def _send(port: int, stack: AsyncExitStack) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    head = f"POST /webhook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{BODY:x}\r\n"
    try:
        async with asyncio.timeout(5):
            writer.write(head.encode())
            for _ in range((BODY >> 16) - 1):
                writer.write(b" " * (1 << 16))
                await writer.drain()
    except (TimeoutError, ConnectionError):
        pass


@asynccontextmanager
async def strained(nodes: int) -> AsyncIterator[Subject]:
    """A scheduler process that knows so many nodes of a packaged machine, and asks nobody else."""
    known = cluster("dgx-h100", nodes, random.Random(1))
    async with AsyncExitStack() as stack:
        port, probes = (stack.enter_context(reserved_port()) for _ in range(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(SimulatedApiServer())
        for node in known.nodes:
            counted = {COUNT: "80"}
            meta = {"name": node.name, "annotations": dict(node.annotations)}
            status = {"capacity": counted, "allocatable": counted}
            server.store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": status})
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        options = [
            "--kubeconfig",
            str(kubeconfig),
            "--listen",
            f"127.0.0.1:{port}",
            "--http",
            f"127.0.0.1:{probes}",
            "--log-level",
            "error",
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hami_plugin", "scheduler", *options, stdout=asyncio.subprocess.DEVNULL, stderr=2
        )
        stack.push_async_callback(_ended, process)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HURRY_S)))
        subject = Subject(
            server=server, pid=process.pid, port=port, session=session, names=[node.name for node in known.nodes]
        )
        async with asyncio.timeout(HURRY_S):
            while not await _ready(session, subject.url("/readyz")):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.1)
        yield subject


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def _ended(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


def resident(pid: int) -> int:
    """A process's memory in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def loop_ms(pid: int) -> float:
    """The CPU time of a process's first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pod(name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {COUNT: "1", "nvidia.com/gpumem": "4000"}}}
    meta = {"name": name, "namespace": "bench", "annotations": dict(annotations)}
    return {"metadata": meta, "spec": {"containers": [container]}}


def _many(count: int) -> dict[str, Any]:
    limits = {COUNT: "1", "nvidia.com/gpumem": "100"}
    containers = [{"name": f"c{number}", "resources": {"limits": limits}} for number in range(count)]
    return {"metadata": {"name": "many", "namespace": "bench"}, "spec": {"containers": containers}}
