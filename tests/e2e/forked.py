"""Daemons that are forked from a process which has imported them: a start costs a fourth of the CPU time."""

from __future__ import annotations

import ast
import asyncio
import inspect
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

IMPORTED = ("vendors.nvidia.injection", "vendors.nvidia.partitions", "hami_plugin.simulation.hardware")
"""Beside the daemon itself and its fatal points."""


class ForkedDaemon:
    """As asyncio's ``Process``, as far as a simulated node asks."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    async def wait(self) -> int | None:
        await asyncio.to_thread(self._process.join)
        return self.returncode


async def fork_daemon(node: Any, live: Callable[[str, list[str], str], None], file: Path) -> None:
    """Begin the node's daemon with ``live(file, arguments, log)`` in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([live.__module__, *IMPORTED])
    arguments = ["run", *(word for option in node.options.items() for word in option)]
    process = context.Process(target=live, args=(str(file), arguments, str(node.directory / node.log)))
    await asyncio.to_thread(process.start)
    node.daemon = ForkedDaemon(process)


def become(log: str) -> None:
    """Write to the log from here on, in the environment of a daemon."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for output in (1, 2):
        os.dup2(opened, output)
    os.close(opened)
    for name in ("NODE_NAME", "HOOK_PATH", "KUBECONFIG"):
        os.environ.pop(name, None)


def stand_in(module: ModuleType, name: str, value: Any) -> None:
    """Have ``module`` find ``value`` under this name. One of its functions has to read it, or this would do nothing."""
    tree = ast.parse(inspect.getsource(module))
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    read = (one for function in functions for line in function.body for one in ast.walk(line))
    if not any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in read):
        raise LookupError(f"no function of {module.__name__} reads {name}")
    assert getattr(module, name) is not None
    setattr(module, name, value)
