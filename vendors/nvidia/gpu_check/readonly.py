"""A driver library behind glass: calls that read pass and are timed, all others are refused before they are made."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

READS = re.compile(
    r"nvml(?:Init(?:WithFlags|_v2)?|Shutdown|ErrorString|SystemGet\w+|DeviceGet\w+|DeviceIsMigDeviceHandle"
    r"|DeviceOnSameBoard|EventSet(?:Create|Free|Wait(?:_v2)?)|DeviceRegisterEvents|GpuInstanceGet\w+)"
)
"""Registering for events changes what this process hears, and nothing else."""


class WriteRefusedError(Exception):
    """Something asked the driver for a change. That is a bug of whoever asked."""


class Timings:
    """How long each function of the library took, over all calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, function: str, seconds: float) -> None:
        self._seconds.setdefault(function, []).append(seconds)

    @property
    def called(self) -> frozenset[str]:
        return frozenset(self._seconds)

    def summary(self) -> Mapping[str, Mapping[str, float]]:
        """Calls, and microseconds: the median and the longest."""
        return {
            function: {
                "calls": len(times),
                "p50_us": round(median(times) * 1e6, 1),
                "max_us": round(max(times) * 1e6, 1),
            }
            for function, times in sorted(self._seconds.items())
        }


class ReadOnlyLibrary:
    """What the binding takes for a ``ctypes.CDLL``. Functions are looked up when they are first asked for."""

    def __init__(self, library: ctypes.CDLL, timings: Timings) -> None:
        self._library = library
        self._timings = timings

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(self._library, name)
        if not READS.fullmatch(name):
            raise WriteRefusedError(f"{name} may change the card or the driver; the check only reads")
        return _Timed(getattr(self._library, name), name, self._timings)


class _Timed:
    """One function of the library."""

    def __init__(self, function: Any, name: str, timings: Timings) -> None:
        self._function = function
        self._name = name
        self._timings = timings

    @property
    def restype(self) -> Any:
        return self._function.restype

    @restype.setter
    def restype(self, value: Any) -> None:
        """The binding sets it on the one function that answers text."""
        self._function.restype = value

    def __call__(self, *arguments: object) -> Any:
        start = time.perf_counter()
        try:
            return self._function(*arguments)
        finally:
            self._timings.add(self._name, time.perf_counter() - start)


def loader(timings: Timings) -> Callable[[str], ReadOnlyLibrary]:
    """What ``NvmlDriver`` takes as ``load``. OSError when there is no such library."""
    return lambda path: ReadOnlyLibrary(ctypes.CDLL(path), timings)
