"""`hami-plugin scheduler` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.forked import ForkedProcess, fork_scheduler
from tests.support.scheduling import until

ROOT = Path(__file__).parents[2]
QUICK = {"scheduler": {"lingerSeconds": 0.2, "name": "toy-scheduler"}}


@dataclass
class Running:
    """The process, where it listens, and what it has logged."""

    process: asyncio.subprocess.Process | ForkedProcess
    port: int
    plain: int
    session: aiohttp.ClientSession
    scheme: str
    log: list[dict[str, Any]]

    async def post(self, path: str, body: object) -> Any:
        async with self.session.post(f"{self.scheme}://127.0.0.1:{self.port}{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.plain}{path}") as answer:
            return answer.status, await answer.text()

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while (await self.get("/readyz"))[0] != 200:  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.05)

    async def ended(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def started(
    server: SimulatedApiServer, folder: Path, *flags: str, trust: Any = None, executed: bool = False, **settings: Any
) -> AsyncIterator[Running]:
    """The command, from its start to whatever end it has found. ``settings`` are more of the scheduler's section.

    It is forked from a process that has imported it, or ``executed`` with an interpreter of its own.
    """
    (folder / "config.json").write_text(json.dumps({"scheduler": {**QUICK["scheduler"], **settings}}))
    words = [
        "--config",
        str(folder / "config.json"),
        "--kubeconfig",
        str(server.write_kubeconfig(folder / "kubeconfig")),
    ]
    words += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json", *flags]
    process, lines = await (_execute(words) if executed else fork_scheduler(words, folder / "log"))
    log: list[dict[str, Any]] = []

    async def read() -> None:
        async for line in lines:
            log.append(json.loads(line))  # noqa: PERF401  # each as it comes

    reading = asyncio.create_task(read())
    try:
        await until(lambda: process.returncode is not None or said(log, "listening"), within=60)
        where = said(log, "listening")
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust) if trust else None, timeout=aiohttp.ClientTimeout(total=60)
        ) as session:
            yield Running(process, where["port"], where["probes"], session, "https" if where["tls"] else "http", log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if log or executed:
            await reading
        reading.cancel()


async def _execute(words: Sequence[str]) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_plugin", "scheduler", *words,
        cwd=ROOT, stderr=asyncio.subprocess.PIPE, env={**os.environ, "KUBECONFIG": ""},
    )  # fmt: skip
    assert process.stderr
    return process, process.stderr


def said(log: list[dict[str, Any]], event: str) -> dict[str, Any]:
    return next((line for line in log if line["event"] == event), {})
