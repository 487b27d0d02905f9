"""The ``pynvml`` binding as it is, with refusals as answers: the types of its answers are among what is checked."""

from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pynvml

from vendors.nvidia.gpu_check.refused import NO_FUNCTION, Refused

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
