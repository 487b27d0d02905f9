"""A process that imports what the daemon imports, step by step, and prints the cost of each step.

A module that two libraries need counts for the first. With the argument ``libraries`` it leaves this project out and
prints its CPU seconds: what the start of any such program costs on this machine.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hami_plugin.cluster.credentials import without_system_authorities

STEPS = {
    "asyncio, ssl": ("asyncio", "ssl"),
    "grpcio, protobuf": ("grpc.aio", "hami_plugin.kubelet.api.deviceplugin_pb2_grpc"),
    "click, PyYAML": ("click", "yaml"),
    "aiohttp": ("aiohttp.web",),
    "msgspec": ("msgspec",),
    "pydantic": ("pydantic", "pydantic.functional_validators"),
    "structlog": ("hami_plugin.process.log",),
    "prometheus_client": ("prometheus_client",),
    "watchdog": ("watchdog.observers",),
    "nvidia-ml-py": ("pynvml",),
}
PROJECT = {
    "this project": (
        "hami_plugin.cli",
        "hami_plugin.daemon.app",
        "hami_plugin.daemon.startup",
        "vendors.nvidia.driver",
    ),
}


LIBRARIES = "libraries"


def resident() -> float:
    """This process's RSS in MiB. Read as text, because a parser would count itself."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def load(modules: Sequence[str]) -> None:
    """As the daemon loads them: it reads no authorities of the system, whose number differs between machines."""
    with without_system_authorities():
        for module in modules:
            importlib.import_module(module)


def main() -> None:
    if sys.argv[1:] == [LIBRARIES]:
        for modules in STEPS.values():
            load(modules)
        print(time.process_time(), flush=True)
        return
    costs = {"Python itself": resident()}
    for name, modules in (STEPS | PROJECT).items():
        before = resident()
        load(modules)
        costs[name] = resident() - before
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
