"""The driver library and its ``pynvml`` binding as they are: refusals are answers, and only calls that read pass.

Every call is timed. A call that may change something is refused before it is made, unless changes were asked for.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import pynvml

NO_PERMISSION, NO_FUNCTION = 4, 13
"""NVML's numbers; the second also where the driver or the binding is older than the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``code`` is NVML's number, ``name`` its name, such as ``NotSupported``."""

    code: int
    name: str


UNREADABLE = 999


def ask(function: str, *arguments: object) -> Any:
    """Call the binding's function of that name; ``Refused`` when it raises one of NVML's errors."""
    call = getattr(pynvml, function, None)
    if call is None:
        return refused(NO_FUNCTION)
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        return refused(int(error.value))
    except UnicodeDecodeError:
        return Refused(code=UNREADABLE, name="GarbledText")


def refused(code: int) -> Refused:
    """A refusal by NVML's number."""
    name = type(pynvml.NVMLError(code)).__name__.removeprefix("NVMLError_")
    return Refused(code=code, name=f"Error{code}" if name == "NVMLError" else name)


def constant(name: str) -> Any:
    """A constant or a class of the binding; None when this binding has none of that name."""
    return getattr(pynvml, name, None)


def exported(symbol: str) -> bool:
    """Whether the library that is open has this function."""
    return hasattr(pynvml.nvmlLib._library, symbol)  # noqa: SLF001  # behind the glass: looked up, not called


def address(handle: Any) -> int:
    """What two handles of one card have in common."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def kind(value: object) -> str:
    """The type of an answer, with the types inside tuples and short lists: ``tuple[int, int]``, ``c_uint``."""
    if isinstance(value, ctypes.Array):
        return f"array of {value._type_.__name__}"
    if isinstance(value, tuple | list):
        inside = [kind(item) for item in value]
        return f"{type(value).__name__}[{', '.join(inside)}]" if inside else type(value).__name__
    return "None" if value is None else type(value).__name__


def release() -> str:
    """The binding's own version."""
    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:
        return "unknown"


READS = re.compile(
    r"nvml(?:Init(?:WithFlags|_v2)?|Shutdown|ErrorString|SystemGet\w+|DeviceGet\w+|DeviceIsMigDeviceHandle"
    r"|DeviceOnSameBoard|EventSet(?:Create|Free|Wait(?:_v2)?)|DeviceRegisterEvents|GpuInstanceGet\w+|ComputeInstanceGet\w+)"
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
    """What the binding takes for a ``ctypes.CDLL``. Functions are looked up when they are first asked for.

    ``allowed`` may be called although they change something.
    """

    def __init__(self, library: ctypes.CDLL, timings: Timings, allowed: Collection[str] = ()) -> None:
        self._library = library
        self._timings = timings
        self._allowed = allowed

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(self._library, name)
        if not READS.fullmatch(name) and name not in self._allowed:
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


def loader(timings: Timings, allowed: Collection[str] = ()) -> Callable[[str], ReadOnlyLibrary]:
    """What ``NvmlDriver`` takes as ``load``. OSError when there is no such library."""
    return lambda path: ReadOnlyLibrary(ctypes.CDLL(path), timings, allowed)
