"""Runs in a container, by its own Python: tries to allocate more of each device than the container was given.

Arguments are the limits of its devices in bytes, in order. Prints one line of JSON. It stands alone: whatever Python
since 3.7 the container has runs it, with nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

MORE = 64 << 20
TRIAL = 1 << 20


def maps() -> list[str]:
    """The libraries in this process that may be a limiter's."""
    found: list[str] = []
    with Path("/proc/self/maps").open() as file:
        for line in file:
            path = line.split(None, 5)[-1].strip()
            if "vgpu" in path and path not in found:
                found.append(path)
    return found[:8]


def tried(cuda: Any, number: int, limit: int) -> dict[str, Any]:
    """What became of one device."""
    device, context, handle = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    answer: dict[str, Any] = {"device": number, "limit": limit}
    for name, arguments in (
        ("cuDeviceGet", (ctypes.byref(device), number)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
    ):
        code = getattr(cuda, name)(*arguments)
        if code:
            return dict(answer, failed=name, code=code)
    answer.update(free=free.value, total=total.value)
    code = cuda.cuMemAlloc_v2(ctypes.byref(handle), ctypes.c_size_t(TRIAL))
    if code:
        return dict(answer, failed="cuMemAlloc_v2 of 1 MiB", code=code)
    cuda.cuMemFree_v2(handle)
    code = cuda.cuMemAlloc_v2(ctypes.byref(handle), ctypes.c_size_t(limit + MORE))
    if not code:
        cuda.cuMemFree_v2(handle)
    cuda.cuDevicePrimaryCtxRelease_v2(device)
    return dict(answer, asked=limit + MORE, code=code)


def main() -> dict[str, Any]:
    answer: dict[str, Any] = {"preload": maps(), "devices": []}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return dict(answer, problem=f"libcuda.so.1: {error}")
    code = cuda.cuInit(0)
    if code:
        return dict(answer, problem=f"cuInit answers {code}")
    answer["devices"] = [tried(cuda, number, int(limit)) for number, limit in enumerate(sys.argv[1:]) if int(limit)]
    return answer


sys.stdout.write(f"hami-plugin-probe {json.dumps(main())}\n")
sys.stdout.flush()
os._exit(0)
