"""NVML with types: the library loaded, unloaded and asked, each question as one method.

The ``pynvml`` binding keeps the library in module globals, so one process holds one library at a time.
"""

from __future__ import annotations

import _ctypes
import ctypes
import glob
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NewType

import pynvml

BARE_NAME = "libnvidia-ml.so.1"


class _Among:
    """A fact about an ``NvmlError``: its code is one of these."""

    def __init__(self, *codes: int) -> None:
        self.codes = frozenset(codes)

    def __get__(self, error: NvmlError, _owner: object = None) -> bool:
        return error.code in self.codes


class NvmlError(Exception):
    """A call that NVML refused. ``name`` is NVML's own name in CamelCase, such as ``GpuIsLost``.

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
    not_found = _Among(pynvml.NVML_ERROR_NOT_FOUND)
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


def load_first(places: Sequence[str], load: Callable[[str], Any]) -> Any:
    """The library from the first place, a path or a pattern, that has one. ``NoLibraryError`` where none has."""
    tried = []
    empty = []
    for number, place in enumerate(places):
        found = sorted(glob.glob(place))  # noqa: PTH207  # places are patterns, or a bare name for the loader
        if not found and number:
            empty.append(place)
            continue
        for path in found or [place]:
            try:
                return load(path)
            except OSError as error:
                tried.append(str(error))
    if empty:
        tried.append(f"nothing at {len(empty)} other places, {empty[0]} first")
    raise NoLibraryError(tried)


class NvmlLibrary:
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
        self._library = load_first(self._places, self._dlopen)
        _bind(self._library)
        self.ask("nvmlInit")
        self._initialised = True

    def close(self) -> None:
        """Shut NVML down and unload it, so that the next ``open`` finds a library that was replaced on disk.

        The dynamic loader would hand out the old one under the same name as long as it is loaded.
        """
        library, self._library = self._library, None
        bound = pynvml.nvmlLib is library  # else another one was opened since, as while the configuration changes
        if self._initialised:
            self._initialised = False
            with suppress(NvmlError):
                self.ask("nvmlShutdown") if bound else library.nvmlShutdown()
        if bound:
            _bind(None)
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001  # the standard library has no public name for it

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


def _bind(library: Any) -> None:
    """Have the binding call this library, and forget the functions of the former one."""
    pynvml.nvmlLib = library
    pynvml._nvmlLib_refcount = 0  # noqa: SLF001  # the binding offers no other way to change libraries
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # as above


Handle = NewType("Handle", object)
EventSet = NewType("EventSet", object)

MAX_NVLINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
# Topology levels as nvidia-smi prints them.
_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "INT",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvent:
    """An event of one card. ``address`` identifies the card's handle.

    ``gi`` and ``ci`` number the instances that it is about; None where it is about all.
    """

    handle: Handle
    address: int
    xid: int | None
    gi: int | None = None
    ci: int | None = None


class Nvml(NvmlLibrary):
    """Every method is one NVML call and raises ``NvmlError``."""

    def driver_version(self) -> str:
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def nvml_version(self) -> str:
        """Such as ``12.535.104.05``: after the first dot, the driver that the library belongs to. Works unopened."""
        return str(self.ask("nvmlSystemGetNVMLVersion"))

    def cuda_version(self) -> str:
        version = int(self.ask("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def uuid(self, handle: Handle) -> str:
        return str(self.ask("nvmlDeviceGetUUID", handle))

    def name(self, handle: Handle) -> str:
        return str(self.ask("nvmlDeviceGetName", handle))

    def minor(self, handle: Handle) -> int:
        return int(self.ask("nvmlDeviceGetMinorNumber", handle))

    def bus_id(self, handle: Handle) -> str:
        return _text(self.ask("nvmlDeviceGetPciInfo", handle).busId)

    def memory(self, handle: Handle) -> int:
        """Total memory in bytes."""
        return int(self.ask("nvmlDeviceGetMemoryInfo", handle).total)

    def memory_used(self, handle: Handle) -> int:
        """Bytes, with those that the driver keeps for itself."""
        return int(self.ask("nvmlDeviceGetMemoryInfo", handle).used)

    def processes(self, handle: Handle) -> Sequence[tuple[int, int | None]]:
        """The processes that compute on the card: their ids, as this process's namespace has them, and their bytes."""
        found = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return [(int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)) for one in found]

    def utilization(self, handle: Handle) -> tuple[int, int]:
        """Percent of the last moment in which the card computed, and in which its memory was read or written."""
        found = self.ask("nvmlDeviceGetUtilizationRates", handle)
        return int(found.gpu), int(found.memory)

    def capability(self, handle: Handle) -> str:
        """CUDA's compute capability, as ``9.0``."""
        major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{major}.{minor}"

    def energy(self, handle: Handle) -> int:
        """Millijoules since the driver was loaded."""
        return int(self.ask("nvmlDeviceGetTotalEnergyConsumption", handle))

    def compute_mode(self, handle: Handle) -> int:
        """0 shared, 1 and 3 one process only, 2 nobody."""
        return int(self.ask("nvmlDeviceGetComputeMode", handle))

    def set_compute_mode(self, handle: Handle, mode: int) -> None:
        self.ask("nvmlDeviceSetComputeMode", handle, mode)

    def mig_enabled(self, handle: Handle) -> bool:
        current, _pending = self.ask("nvmlDeviceGetMigMode", handle)
        return bool(current)

    def mig_places(self, handle: Handle) -> int:
        """How many MIG devices a card can have at most."""
        return int(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle))

    def mig_device(self, handle: Handle, index: int) -> Handle | None:
        """The MIG device at a place of a card; None when the place is free."""
        try:
            return Handle(self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index))
        except NvmlError as error:
            if error.not_found:
                return None
            raise

    def gpu_instance(self, mig_device: Handle) -> int:
        return int(self.ask("nvmlDeviceGetGpuInstanceId", mig_device))

    def compute_instance(self, mig_device: Handle) -> int:
        return int(self.ask("nvmlDeviceGetComputeInstanceId", mig_device))

    def memory_slices(self, card: Handle, gpu_instance: int) -> tuple[int, int]:
        """The first of the card's memory slices that a GPU instance has, and how many."""
        found = self.ask("nvmlDeviceGetGpuInstanceById", card, gpu_instance)
        placement = self.ask("nvmlGpuInstanceGetInfo", found).placement
        return int(placement.start), int(placement.size)

    def remapped_rows(self, handle: Handle) -> tuple[bool, bool]:
        """Whether row replacements wait for a reset, and whether one has failed."""
        _correctable, _uncorrectable, pending, failed = self.ask("nvmlDeviceGetRemappedRows", handle)
        return bool(pending), bool(failed)

    def retired_pages_pending(self, handle: Handle) -> bool:
        return bool(self.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle))

    def recovery_action(self, handle: Handle) -> int:
        """What the driver itself asks for: 0 is nothing. ``NvmlError`` where it has no opinion."""
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value = self.ask("nvmlDeviceGetFieldValues", handle, [field])[0]
        if value.nvmlReturn:
            error = NvmlError.of(f"field {field}", pynvml.NVMLError(value.nvmlReturn))
            if error.no_such_part:
                raise NvmlError(error.call, pynvml.NVML_ERROR_NOT_SUPPORTED, "NotSupported")
            raise error
        return int(value.value.uiVal)

    def level(self, a: Handle, b: Handle) -> str:
        """What the two cards' PCIe paths have in common; NVML's number when it has no word here."""
        number = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        return _LEVELS.get(number, str(number))

    def nvlink_up(self, handle: Handle, link: int) -> bool:
        """Whether this link is there and up."""
        try:
            return bool(self.ask("nvmlDeviceGetNvLinkState", handle, link))
        except NvmlError as error:
            if error.no_such_part:
                return False
            raise

    def nvlink_peer(self, handle: Handle, link: int) -> str:
        return _text(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link).busId)

    def nvlink_to_switch(self, handle: Handle, link: int) -> bool:
        kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def event_set(self) -> EventSet:
        return EventSet(self.ask("nvmlEventSetCreate"))

    def free(self, events: EventSet) -> None:
        self.ask("nvmlEventSetFree", events)

    def watch_xids(self, handle: Handle, events: EventSet) -> bool:
        """Register a card's XIDs; False when the card reports none."""
        wanted = int(self.ask("nvmlDeviceGetSupportedEventTypes", handle)) & pynvml.nvmlEventTypeXidCriticalError
        if not wanted:
            return False
        self.ask("nvmlDeviceRegisterEvents", handle, wanted, events)
        return True

    def wait(self, events: EventSet, milliseconds: int) -> NvmlEvent:
        """Block for the next event; ``NvmlError`` with ``timeout`` when none came."""
        data = self.ask("nvmlEventSetWait_v2", events, milliseconds)
        is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        return NvmlEvent(
            handle=Handle(data.device),
            address=_address(data.device),
            xid=int(data.eventData) if is_xid else None,
            gi=_number(data.gpuInstanceId),
            ci=_number(data.computeInstanceId),
        )

    @staticmethod
    def address(handle: Handle) -> int:
        """What two handles of the same card have in common; the binding's own objects never compare equal."""
        return _address(handle)


_EVERY_INSTANCE = 0xFFFFFFFF


def _number(instance: int) -> int | None:
    return None if instance == _EVERY_INSTANCE else int(instance)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
