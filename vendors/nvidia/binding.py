"""One loaded NVML library: finding it, loading and unloading it, and asking it a question by name.

The ``pynvml`` binding keeps the library in module globals, so one process holds one library at a time.
"""

from __future__ import annotations

import _ctypes
import ctypes
import glob
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pynvml

BARE_NAME = "libnvidia-ml.so.1"


class _Among:
    """A fact about an ``NvmlError``: its code is one of these."""

    def __init__(self, *codes: int) -> None:
        self.codes = frozenset(codes)

    def __get__(self, error: NvmlError, _owner: object = None) -> bool:
        return error.code in self.codes


class NvmlError(Exception):
    """A call that NVML refused. ``name`` is NVML's own word in CamelCase, such as ``GpuIsLost``.

    ``driver_gone``: no call at all can work before NVML is opened again. ``unsupported``: this card or this driver
    does not know the question; ``no_such_part``: nor, perhaps, the link or the field that it is about.
    """

    driver_gone = _Among(
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
    unsupported = _Among(pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    # A link or a field that this card or driver is too old for is an invalid argument to it.
    no_such_part = _Among(
        pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT
    )
    no_permission = _Among(pynvml.NVML_ERROR_NO_PERMISSION)
    lost = _Among(pynvml.NVML_ERROR_GPU_IS_LOST)
    reset_required = _Among(pynvml.NVML_ERROR_RESET_REQUIRED)
    timeout = _Among(pynvml.NVML_ERROR_TIMEOUT)
    not_loaded = _Among(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    version_mismatch = _Among(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} answered {name} ({code})")
        self.call = call
        self.code = code
        self.name = name

    @classmethod
    def of(cls, call: str, error: Any) -> NvmlError:
        """From the binding's own exception."""
        name = type(error).__name__.removeprefix("NVMLError_")
        return cls(call, error.value, f"Error{error.value}" if name == "NVMLError" else name)


class NoLibraryError(Exception):
    """None of the places has a library that can be loaded."""

    def __init__(self, tried: Sequence[str]) -> None:
        super().__init__("; ".join(tried))


class Library:
    """What can be asked of the library once it is open.

    ``load`` is how a path becomes a library; the binding looks its functions up in whatever comes of it.
    """

    def __init__(self, places: Sequence[str], *, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._places = tuple(places)
        self._dlopen = load
        self._library: Any = None
        self._initialised = False

    @property
    def is_open(self) -> bool:
        return self._initialised

    def open(self) -> None:
        """Load the library and initialise it. What fails half-way leaves nothing behind but the loaded library."""
        self.close()
        self._library = self._load()
        pynvml.nvmlLib = self._library
        self.ask("nvmlInit")
        self._initialised = True

    def close(self) -> None:
        """Shut NVML down and unload it, so that the next ``open`` finds a library that was replaced on disk.

        The dynamic loader would hand out the old one under the same name as long as it is loaded.
        """
        if self._initialised:
            self._initialised = False
            with suppress(NvmlError):
                self.ask("nvmlShutdown")
        pynvml.nvmlLib = None
        pynvml._nvmlLib_refcount = 0  # noqa: SLF001  # the binding offers no other way to change libraries
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # as above
        library, self._library = self._library, None
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001  # the standard library has no public name for it

    def _load(self) -> Any:
        tried = []
        empty = []
        for number, place in enumerate(self._places):
            found = sorted(glob.glob(place))  # noqa: PTH207  # places are patterns, or a bare name for the loader
            if not found and number:
                empty.append(place)
                continue
            for path in found or [place]:
                try:
                    return self._dlopen(path)
                except OSError as error:
                    tried.append(str(error))
        if empty:
            tried.append(f"nothing at {len(empty)} other places, {empty[0]} first")
        raise NoLibraryError(tried)

    def ask(self, function: str, *arguments: object) -> Any:
        """What the binding's ``function`` answers. ``NvmlError`` whatever goes wrong with it."""
        call = getattr(pynvml, function, None)
        if call is None:  # a binding older than the function
            raise NvmlError(function, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "FunctionNotFound")
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError.of(function, error) from error
        except UnicodeDecodeError as error:
            raise NvmlError(function, pynvml.NVML_ERROR_UNKNOWN, "GarbledText") from error
