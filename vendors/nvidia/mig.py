"""NVML's calls about MIG: what a card can be cut into, and the instances that are made and destroyed.

A session of its own for each operation, without the binding's module globals: so it may run beside discovery and beside
other cards' operations, and holds no handle of an instance for longer.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NewType

import pynvml

from vendors.nvidia.nvml import NvmlError, load_first

Card = NewType("Card", object)
GpuInstance = NewType("GpuInstance", object)
ComputeInstance = NewType("ComputeInstance", object)
MigDevice = NewType("MigDevice", object)

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
IN_USE = pynvml.NVML_ERROR_IN_USE
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
NO_ROOM = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
_TOO_SMALL = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
_NO_FUNCTION = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND

GI_NUMBERS = 32
"""NVML's numbers of profiles end at 17 in 2026. Those of a newer driver are asked for too."""
CI_NUMBERS = 16
MAX_PLACES = 64
MAX_INSTANCES = 64
MAX_CARDS = 256
MAX_PROCESSES = 1024
_UUID_ROOM = 96

CHANGES = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
    }
)
"""The calls that change a card. All others only read."""

_EXTENDED = {7: "+me", 8: "+me", 15: "+me.all", 16: "+me.all", 13: "-me", 14: "-me"} | dict.fromkeys(
    (10, 11, 12, 17), "+gfx"
)
"""What NVML's number of a profile adds to its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiProfile:
    """A shape of GPU instances. ``id`` is what calls take; ``memory`` in MiB; ``instances`` at most on one card."""

    id: int
    name: str
    memory: int
    slices: int
    instances: int
    multiprocessors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiInfo:
    """A GPU instance: its number on its card, its profile's id, and its memory slices."""

    id: int
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CiProfile:
    """A shape of compute instances in one GPU instance."""

    id: int
    slices: int
    instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CiInfo:
    """A compute instance: its number in its GPU instance, and the device that NVML names with it."""

    id: int
    device: MigDevice


def profile_name(number: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """A profile's name as NVIDIA's tools put it together, where the driver is too old to tell.

    The gigabytes are the instance's share of the card, in eighths and rounded up, of the card's whole gigabytes.
    """
    eighths = -(-memory_mib * 1024**2 * 8 // total_bytes)
    gigabytes = int(eighths / 8 * -(-total_bytes // 1024**3) + 0.5)
    return f"{slices}g.{gigabytes}gb{_EXTENDED.get(number, '')}"


class MigSession:
    """An open session. Every method is one NVML call, or two where NVML wants to be asked for a size first.

    ``NvmlError`` for whatever it refuses.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            symbol = getattr(self._library, function)
        except AttributeError as error:
            raise NvmlError(function, _NO_FUNCTION, "FunctionNotFound") from error
        code = symbol(*arguments)
        if code:
            raise NvmlError.of(function, pynvml.NVMLError(code))

    def _number(self, function: str, *arguments: Any) -> int:
        answer = ctypes.c_uint()
        self._call(function, *arguments, ctypes.byref(answer))
        return answer.value

    def cards(self) -> int:
        return min(self._number("nvmlDeviceGetCount_v2"), MAX_CARDS)

    def card_at(self, index: int) -> Card:
        found = pynvml.c_nvmlDevice_t()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(found))
        return Card(found)

    def card(self, uuid: str) -> Card:
        found = pynvml.c_nvmlDevice_t()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(found))
        return Card(found)

    def uuid(self, device: Card | MigDevice) -> str:
        text = ctypes.create_string_buffer(_UUID_ROOM)
        self._call("nvmlDeviceGetUUID", device, text, ctypes.c_uint(_UUID_ROOM))
        return text.value.decode(errors="replace")

    def minor(self, card: Card) -> int:
        return self._number("nvmlDeviceGetMinorNumber", card)

    def architecture(self, card: Card) -> int:
        return self._number("nvmlDeviceGetArchitecture", card)

    def memory(self, card: Card) -> int:
        """Bytes of the whole card."""
        info = pynvml.c_nvmlMemory_t()
        self._call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(info))
        return int(info.total)

    def mode(self, card: Card) -> tuple[bool, bool]:
        """Whether the card is in MIG mode, and whether it will be after its next reset."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetMigMode", card, ctypes.byref(current), ctypes.byref(pending))
        return bool(current.value), bool(pending.value)

    def set_mode(self, card: Card, on: bool) -> int:
        """0 if the mode is in force, else the code of what holds it up, such as ``IN_USE``."""
        return self._number("nvmlDeviceSetMigMode", card, ctypes.c_uint(on))

    def gi_profile(self, card: Card, number: int) -> GiProfile | None:
        """By NVML's number, which is not the profile's id. None where this card has none of that number."""
        name = ""
        info: Any = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        try:
            try:
                self._call("nvmlDeviceGetGpuInstanceProfileInfoV", card, ctypes.c_uint(number), ctypes.byref(info))
                name = _text(info.name).removeprefix("MIG ").strip()
            except NvmlError as error:
                if error.code != _NO_FUNCTION:
                    raise
                info = pynvml.c_nvmlGpuInstanceProfileInfo_t()
                self._call("nvmlDeviceGetGpuInstanceProfileInfo", card, ctypes.c_uint(number), ctypes.byref(info))
        except NvmlError as error:
            if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                return None
            raise
        memory = int(info.memorySizeMB)
        return GiProfile(
            id=int(info.id),
            name=name or profile_name(number, int(info.sliceCount), memory, self.memory(card)),
            memory=memory,
            slices=int(info.sliceCount),
            instances=int(info.instanceCount),
            multiprocessors=int(info.multiprocessorCount),
        )

    def placements(self, card: Card, profile_id: int) -> tuple[tuple[int, int], ...]:
        """Every legal (start, size) of a profile, in memory slices, whatever exists."""
        count, symbol = ctypes.c_uint(0), "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        self._call(symbol, card, ctypes.c_uint(profile_id), None, ctypes.byref(count))
        count.value = min(count.value, MAX_PLACES)
        places = (pynvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
        self._call(symbol, card, ctypes.c_uint(profile_id), places, ctypes.byref(count))
        return tuple((int(one.start), int(one.size)) for one in places[: min(count.value, MAX_PLACES)])

    def gpu_instances(self, card: Card, profile_id: int) -> tuple[GpuInstance, ...]:
        """Those of one profile: NVML has no list of all."""
        found = self._list("nvmlDeviceGetGpuInstances", pynvml.c_nvmlGpuInstance_t, card, profile_id)
        return tuple(GpuInstance(one) for one in found)

    def _list(self, function: str, kind: Any, owner: object, profile_id: int) -> Sequence[Any]:
        """The array has room for more than a card can have."""
        count, array = ctypes.c_uint(MAX_INSTANCES), (kind * MAX_INSTANCES)()
        self._call(function, owner, ctypes.c_uint(profile_id), array, ctypes.byref(count))
        return [array[position] for position in range(min(count.value, MAX_INSTANCES))]

    def create_gpu_instance(self, card: Card, profile_id: int, start: int, size: int) -> GpuInstance:
        place = pynvml.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = start, size
        made = pynvml.c_nvmlGpuInstance_t()
        symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
        self._call(symbol, card, ctypes.c_uint(profile_id), ctypes.byref(place), ctypes.byref(made))
        return GpuInstance(made)

    def destroy_gpu_instance(self, instance: GpuInstance) -> None:
        self._call("nvmlGpuInstanceDestroy", instance)

    def gi_info(self, instance: GpuInstance) -> GiInfo:
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        self._call("nvmlGpuInstanceGetInfo", instance, ctypes.byref(info))
        place = info.placement
        return GiInfo(id=int(info.id), profile_id=int(info.profileId), start=int(place.start), size=int(place.size))

    def ci_profile(self, instance: GpuInstance, number: int) -> CiProfile | None:
        """By NVML's number. None where this GPU instance has none of that number."""
        info = pynvml.c_nvmlComputeInstanceProfileInfo_t()
        symbol = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        try:
            self._call(symbol, instance, ctypes.c_uint(number), ctypes.c_uint(0), ctypes.byref(info))
        except NvmlError as error:
            if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                return None
            raise
        return CiProfile(id=int(info.id), slices=int(info.sliceCount), instances=int(info.instanceCount))

    def compute_instances(self, instance: GpuInstance, profile_id: int) -> tuple[ComputeInstance, ...]:
        found = self._list("nvmlGpuInstanceGetComputeInstances", pynvml.c_nvmlComputeInstance_t, instance, profile_id)
        return tuple(ComputeInstance(one) for one in found)

    def create_compute_instance(self, instance: GpuInstance, profile_id: int) -> ComputeInstance:
        made = pynvml.c_nvmlComputeInstance_t()
        symbol = "nvmlGpuInstanceCreateComputeInstance"
        self._call(symbol, instance, ctypes.c_uint(profile_id), ctypes.byref(made))
        return ComputeInstance(made)

    def destroy_compute_instance(self, instance: ComputeInstance) -> None:
        self._call("nvmlComputeInstanceDestroy", instance)

    def ci_info(self, instance: ComputeInstance) -> CiInfo:
        info = pynvml.c_nvmlComputeInstanceInfo_t()
        self._call("nvmlComputeInstanceGetInfo_v2", instance, ctypes.byref(info))
        return CiInfo(id=int(info.id), device=MigDevice(ctypes.cast(info.device, pynvml.c_nvmlDevice_t)))

    def mig_places(self, card: Card) -> int:
        """How many MIG devices a card can have at most."""
        return min(self._number("nvmlDeviceGetMaxMigDeviceCount", card), MAX_INSTANCES)

    def mig_device(self, card: Card, index: int) -> MigDevice | None:
        """The MIG device with that index; None where there is none, as between others."""
        found = pynvml.c_nvmlDevice_t()
        try:
            self._call("nvmlDeviceGetMigDeviceHandleByIndex", card, ctypes.c_uint(index), ctypes.byref(found))
        except NvmlError as error:
            if error.code == NOT_FOUND:
                return None
            raise
        return MigDevice(found)

    def numbers(self, device: MigDevice) -> tuple[int, int]:
        """Of its GPU instance and of its compute instance."""
        return self._number("nvmlDeviceGetGpuInstanceId", device), self._number(
            "nvmlDeviceGetComputeInstanceId", device
        )

    def processes(self, device: Card | MigDevice) -> tuple[int, ...]:
        """PIDs of all that NVML knows to compute, to draw, or to use it through MPS."""
        found: set[int] = set()
        for kind in ("Compute", "Graphics", "MPSCompute"):
            count, array = ctypes.c_uint(MAX_PROCESSES), (pynvml.c_nvmlProcessInfo_v3_t * MAX_PROCESSES)()
            symbol = f"nvmlDeviceGet{kind}RunningProcesses_v3"
            try:
                self._call(symbol, device, ctypes.byref(count), array)
            except NvmlError as error:
                if not error.unsupported:
                    raise
                continue
            found |= {int(array[position].pid) for position in range(min(count.value, MAX_PROCESSES))}
        return tuple(sorted(found))


@contextmanager
def session(places: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL) -> Iterator[MigSession]:
    """Load the library from the first of ``places``, open a session, and leave both in the end.

    ``NoLibraryError``, or ``NvmlError`` where NVML does not start.
    """
    library = load_first(places, load)
    try:
        opened = MigSession(library)
        opened._call("nvmlInit_v2")  # noqa: SLF001  # the class's own factory
        try:
            yield opened
        finally:
            with suppress(NvmlError):
                opened._call("nvmlShutdown")  # noqa: SLF001  # as above
    finally:
        _ctypes.dlclose(library._handle)  # noqa: SLF001  # the standard library has no public name for it


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
