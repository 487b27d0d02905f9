"""The processes of a run: started, waited for, measured from outside, and ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.shipped import ENVIRONMENT, FLAGS
from hami_plugin.errors import HamiError

# The daemon must not read the environment of the bench.
_OWN_VARIABLES = frozenset({"NODE_NAME", "HOOK_PATH", "KUBECONFIG", "HAMI_PLUGIN_CONFIG", "CONFIG_FILE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A process's memory in MiB. ``anonymous`` is what it wrote itself, the rest are mapped files; ``share`` is PSS."""

    resident: float
    anonymous: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What starts Python, and the environment that it needs."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


THIS = Interpreter(command=(sys.executable,))


async def spawn(
    *arguments: str | Path, log: Path | None = None, packages: Path | None = None, interpreter: Interpreter = THIS
) -> asyncio.subprocess.Process:
    """Start ``python …``. Its standard output comes back through a pipe, or goes to ``log`` with its errors.

    With ``packages`` it can import what is in that folder, and nothing else, in the image's environment.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _OWN_VARIABLES}
    if packages is not None:
        environment |= {**ENVIRONMENT, "PYTHONPATH": str(packages)}
        arguments = (*FLAGS, *arguments)
    environment |= interpreter.environment
    command = (*interpreter.command, *(str(argument) for argument in arguments))
    if log is None:
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file, env=environment)


@asynccontextmanager
async def running(*arguments: str | Path, packages: Path | None = None) -> AsyncIterator[str]:
    """A process for the time of the block. Yields the first line of its output."""
    process = await spawn(*arguments, packages=packages)
    try:
        async with asyncio.timeout(20):
            line = await process.stdout.readline() if process.stdout else b""
        if not line:
            raise HamiError(f"`python {' '.join(map(str, arguments))}` ended before it was ready")
        yield line.decode().strip()
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Terminate it, and kill it after five seconds."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def memory(pid: int) -> Memory:
    rollup = _fields(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:])
    return Memory(
        resident=rollup["Rss"] / 1024,
        anonymous=rollup["Anonymous"] / 1024,
        share=rollup["Pss"] / 1024,
    )


def peak_memory(pid: int) -> float:
    """The most MiB that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return _fields(lines)["VmHWM"] / 1024


def cpu_seconds(pid: int) -> float:
    """Time on a CPU so far, of all threads that live; in nanoseconds' precision, where ``stat`` only counts ticks."""
    times = (path.read_text(encoding="ascii").split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(map(int, times)) / 1e9


def _fields(lines: Sequence[str]) -> dict[str, float]:
    pairs = (line.split(":", 1) for line in lines if line.endswith("kB"))
    return {key: float(value.split()[0]) for key, value in pairs}
