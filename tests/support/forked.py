"""Daemons and schedulers forked from a process that has imported them: a start costs a fourth of the CPU time."""

from __future__ import annotations

import ast
import asyncio
import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from hami_plugin import cli
from hami_plugin.demo.node import LAUNCHER, StartedDaemon, environment, execute

ROOT = Path(__file__).parents[2]
IMPORTED = (
    *(
        "hami_plugin.cli.daemon",
        "hami_plugin.daemon.app",
        "hami_plugin.daemon.startup",
        "hami_plugin.simulation.hardware",
    ),
    *("hami_plugin.cli.scheduler", "hami_plugin.scheduler.extender.app"),
    *("vendors.nvidia.injection", "vendors.nvidia.partitions"),
    *(f"vendors.{rules.parent.name}.rules" for rules in sorted((ROOT / "vendors").glob("*/rules.py"))),
)


class ForkedProcess:
    """As asyncio's ``Process``, as far as a simulated node and a test ask."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    async def wait(self) -> int:
        await asyncio.to_thread(self._process.join)
        assert self.returncode is not None
        return self.returncode


async def launch(launcher: Sequence[str], arguments: Sequence[str], log: Path) -> StartedDaemon:
    """As ``execute``, and forked where it is the command itself that shall run.

    Where coverage is measured nothing is forked: what a forked process has run would be lost at its end.
    """
    if tuple(launcher) != LAUNCHER or "COVERAGE_PROCESS_CONFIG" in os.environ:
        return await execute(launcher, arguments, log)
    return await fork(_command, list(arguments), str(log))


async def fork_scheduler(arguments: Sequence[str], log: Path) -> tuple[ForkedProcess, asyncio.StreamReader]:
    """Be ``python -m hami_plugin scheduler`` with these arguments. Also return what it logs, by way of a pipe ``log``.

    Nothing comes of the pipe, not even its end, if the process ends before it logs.
    """
    lines, pipe = asyncio.StreamReader(), _pipe(log)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    return await fork(_scheduler, list(arguments), str(log)), lines


async def fork_daemon(node: Any, live: Callable[[str, list[str], str], None], file: Path) -> None:
    """Begin the node's daemon with ``live(file, arguments, log)`` in a process of its own."""
    arguments = ["run", *(word for option in node.options.items() for word in option)]
    node.daemon = await fork(live, str(file), arguments, str(node.directory / node.log))


async def fork(target: Callable[..., None], *arguments: Any) -> ForkedProcess:
    """Call ``target`` in a process that is forked from the one that has imported the daemon."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    process = context.Process(target=_called, args=(environment(), target, arguments))
    await asyncio.to_thread(process.start)
    return ForkedProcess(process)


def _pipe(path: Path) -> BinaryIO:
    """A new pipe at ``path``, to be read. Nobody writes to it yet."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)


def _called(variables: dict[str, str], target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    target(*arguments)


def _command(arguments: list[str], log: str) -> None:
    """Be ``python -m hami_plugin`` with these arguments."""
    become(log)
    sys.argv = ["hami-plugin", *arguments]
    cli.main()


def _scheduler(arguments: list[str], log: str) -> None:
    opened = os.open(log, os.O_WRONLY)
    os.dup2(opened, 2)
    os.close(opened)
    sys.argv = ["hami-plugin", "scheduler", *arguments]
    cli.main()


def become(log: str) -> None:
    """Write to the log from here on."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for output in (1, 2):
        os.dup2(opened, output)
    os.close(opened)


def stand_in(module: ModuleType, name: str, value: Any) -> None:
    """Have ``module`` find ``value`` under this name. One of its functions has to read it, or this would do nothing."""
    tree = ast.parse(inspect.getsource(module))
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    read = (one for function in functions for line in function.body for one in ast.walk(line))
    if not any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in read):
        raise LookupError(f"no function of {module.__name__} reads {name}")
    assert getattr(module, name) is not None
    setattr(module, name, value)
