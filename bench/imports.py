"""A process of its own that imports what the daemon imports, step by step, and prints what each step costs.

A module that two libraries need counts for the one that comes first.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

STEPS = {
    "asyncio, ssl": ("asyncio", "ssl"),
    "grpcio, protobuf": ("grpc.aio", "hami_plugin.kubelet.v1beta1.deviceplugin_pb2_grpc"),
    "aiohttp": ("aiohttp.web",),
    "pydantic": ("pydantic", "pydantic.functional_validators"),
    "structlog": ("structlog",),
    "prometheus_client": ("prometheus_client",),
    "watchdog": ("watchdog.observers",),
    "nvidia-ml-py": ("pynvml",),
    "click, PyYAML": ("click", "yaml"),
    "this project": ("hami_plugin.cli", "hami_plugin.daemon.app", "hami_plugin.daemon.startup", "vendors.nvidia.nvml"),
}


def resident() -> float:
    """This process's RSS in MiB. Read as text, since a parser would count itself."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    costs = {"Python itself": resident()}
    for name, modules in STEPS.items():
        before = resident()
        for module in modules:
            importlib.import_module(module)
        costs[name] = resident() - before
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
