"""MIG instances made and destroyed: NVIDIA's ``PartitionDriver``, and the mode that it needs.

A partition is a compute instance with its GPU instance, or a GPU instance that has none. Each operation looks its card
up by UUID, and nothing is remembered between two.

NVML is called in a session of each operation, without the binding's module globals: so an operation may run beside
discovery and beside other cards' operations, and holds no handle of an instance for longer.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NewType, TypeVar

import pynvml

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.process.log import logger
from hami_plugin.sdk.partitions import (
    InUseError,
    Mode,
    NoRoomError,
    Partition,
    Placement,
    Profile,
    Step,
    UnlistedCardsError,
)
from vendors.nvidia.driver import library_places
from vendors.nvidia.health import driver_unavailable, library_missing
from vendors.nvidia.host import HostTrees, read_capabilities
from vendors.nvidia.nvml import NoLibraryError, NvmlError, load_first
from vendors.nvidia.settings import NvidiaSettings

log = logger(__name__)

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


NODE_DEADLINE_S = 5.0
"""How long the nodes of a new instance may take to appear."""
NODE_INTERVAL_S = 0.05
MODE_DEADLINE_S = 30.0
"""How long a card may be away while its mode changes."""
MODE_INTERVAL_S = 0.5
HOPPER = 9
"""NVML's number of the first architecture that changes its mode without a reset."""

_GONE = (NOT_FOUND, INVALID_ARGUMENT)
"""What a handle answers whose instance somebody has destroyed."""
LISTINGS = 5
"""So often a profile's instances are listed before one that does not answer counts as a failure."""
_RIGHTS = "run the container privileged, or with NVIDIA_MIG_CONFIG_DEVICES=all and CAP_SYS_ADMIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compute:
    """A compute instance of one session."""

    handle: ComputeInstance
    id: int
    slices: int
    uuid: str
    device: MigDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A GPU instance of one session, with its compute instances."""

    card: str
    handle: GpuInstance
    shape: GiProfile
    id: int
    placement: Placement
    compute: tuple[_Compute, ...]

    def partitions(self) -> Iterator[Partition]:
        whole = Partition(
            card=self.card, profile=self.shape.name, placement=self.placement, uuid="", ids={"gi": self.id}
        )
        if not self.compute:
            yield whole
        for one in self.compute:
            name = self.shape.name if one.slices == self.shape.slices else f"{one.slices}c.{self.shape.name}"
            yield replace(whole, profile=name, uuid=one.uuid, ids={"gi": self.id, "ci": one.id})


class MigPartitions:
    """A ``PartitionDriver``. Its methods may run in several threads at once: each has an NVML session of its own."""

    def __init__(
        self,
        settings: NvidiaSettings,
        host: HostFiles,
        *,
        load: Callable[[str], Any] = ctypes.CDLL,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._host = settings, host
        self._trees = HostTrees(
            sysfs=settings.sysfs_root or host.paths.sysfs, proc=settings.proc_root or host.paths.proc
        )
        self._load, self._clock, self._sleep = load, clock, sleep

    def profiles(self, card: str) -> tuple[Profile, ...]:
        with self._session(f"the MIG profiles of {card}") as nvml:
            handle = nvml.card(card)
            if _mode(nvml, handle) != (True, True):
                return ()
            shapes = _shapes(nvml, handle)
            whole = max((shape.multiprocessors for shape in shapes), default=0) or 1
            return tuple(
                Profile(
                    name=shape.name,
                    memory=shape.memory,
                    compute=shape.slices,
                    placements=tuple(Placement(*place) for place in nvml.placements(handle, shape.id)),
                    limit=shape.instances,
                    cores=-(-100 * shape.multiprocessors // whole),
                )
                for shape in shapes
            )

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        with self._session(f"the MIG instances{' of ' if card else ''}{card}") as nvml:
            if card:
                return tuple(_listed(nvml, card, nvml.card(card)))
            return self._all(nvml)

    def _all(self, nvml: MigSession) -> tuple[Partition, ...]:
        """Of the cards that are cut here. One that does not answer has the name that the kernel gives it, if that lists
        as many as NVML.
        """
        found: list[Partition] = []
        unlisted: list[tuple[str, NvmlError]] = []
        count, known = nvml.cards(), [one.uuid for one in self._trees.cards()]
        for index in range(count):
            uuid = known[index] if len(known) == count else ""
            try:
                handle = nvml.card_at(index)
                uuid = nvml.uuid(handle)
                if self._settings.cut_devices.names(uuid=uuid, index=index):
                    found += _listed(nvml, uuid, handle)
            except NvmlError as error:
                if error.driver_gone:
                    raise
                unlisted.append((uuid, error))
        if unlisted:
            why = "; ".join(f"{uuid or 'a card'}: {error}" for uuid, error in unlisted)
            hint = _RIGHTS if any(error.no_permission for _, error in unlisted) else ""
            message = f"MIG instances cannot be listed: {why}"
            raise UnlistedCardsError(message, [uuid for uuid, _ in unlisted], found, hint=hint)
        return tuple(found)

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        with self._session(f"MIG profile {profile} at {placement.start} of {card}") as nvml:
            handle = nvml.card(card)
            if _mode(nvml, handle) != (True, True):
                raise HamiError(f"{card} is not in MIG mode, or is about to leave it", hint="nvidia-smi -mig 1")
            shape = _shape(nvml, handle, profile)
            if (placement.start, placement.size) not in nvml.placements(handle, shape.id):
                raise HamiError(f"{profile} of {card} cannot be at {placement.start} with size {placement.size}")
            try:
                made = _Made(nvml, nvml.create_gpu_instance(handle, shape.id, placement.start, placement.size), step)
            except NvmlError as error:
                if error.code == NO_ROOM:
                    raise NoRoomError(f"{card} has no room for {profile} at {placement.start}: {error}") from error
                raise
            try:
                inner = made.fill(shape)
                uuid = nvml.uuid(_device(nvml, handle, made.ids["gi"], inner))
                self._await_nodes(nvml.minor(handle), made.ids["gi"], inner.id)
            except Exception:
                made.undo()
                raise
            return Partition(card=card, profile=shape.name, placement=placement, uuid=uuid, ids=dict(made.ids))

    def destroy(self, partition: Partition, step: Step) -> None:
        with self._session(f"MIG instance {partition.uuid or partition.profile} of {partition.card}") as nvml:
            handle = nvml.card(partition.card)
            in_mig_mode, _ = nvml.mode(handle)
            found = _same(nvml, handle, partition) if in_mig_mode else None
            if found is None:
                return
            others = [one.uuid for one in found.compute if one.uuid != partition.uuid]
            if others:
                names = ", ".join(others)
                raise InUseError(f"GPU instance {found.id} of {partition.card} has another compute instance: {names}")
            for one in found.compute:
                with _destroying(nvml, partition, one):
                    _gone(one.handle, nvml.destroy_compute_instance, nvml.ci_info)
                step({"gi": found.id})
            with _destroying(nvml, partition):
                _gone(found.handle, nvml.destroy_gpu_instance, nvml.gi_info)
            step({})

    def users(self, partition: Partition) -> Sequence[int]:
        with self._session(f"the processes of {partition.uuid or partition.profile}") as nvml:
            handle = nvml.card(partition.card)
            if not _mode(nvml, handle)[0]:
                return ()
            found = _same(nvml, handle, partition)
            return sorted({pid for one in found.compute for pid in _users(nvml, one)}) if found else ()

    def mode(self, card: str) -> Mode:
        """The card's mode, and what speaks against changing it now."""
        with self._session(f"the MIG mode of {card}") as nvml:
            return _judged(nvml, nvml.card(card), card)

    def switch(self, card: str, *, on: bool) -> None:
        """Change the mode of an idle card, and wait until it is back. Never while a container is allocated.

        Whoever in this process waits for the card's events must let go of it first.
        ``InUseError`` where somebody has the card open; ``HamiError`` where it must be reset first, or must not be
        changed. A change that waits for a reset is not taken back.
        """
        with self._session(f"the MIG mode of {card}") as nvml:
            handle = nvml.card(card)
            before = _judged(nvml, handle, card)
            if before.current == on == before.pending:
                return
            if before.problem:
                raise HamiError(f"the MIG mode of {card} is not changed: {before.problem}")
            held_up = nvml.set_mode(handle, on)
        if held_up == IN_USE:
            raise InUseError(f"the MIG mode of {card} changes at its next reset: somebody has the card open")
        if held_up:
            raise HamiError(
                f"the MIG mode of {card} changes at its next reset (activation status {held_up})",
                hint="reset the card, or restart the machine",
            )
        self._await_mode(card, on=on)

    def _await_mode(self, card: str, *, on: bool) -> None:
        """The driver may take the card away meanwhile, and give it another index and minor."""
        end = self._clock() + MODE_DEADLINE_S
        while True:
            with suppress(HamiError):
                if self.mode(card).current == on:
                    return
            if self._clock() >= end:
                raise HamiError(f"{card} is not back {MODE_DEADLINE_S:.0f} s after its MIG mode was changed")
            self._sleep(MODE_INTERVAL_S)

    def _await_nodes(self, minor: int, gi: int, ci: int) -> None:
        """Both nodes of an instance. Where the kernel lists none, as on WSL, there is nothing to wait for."""
        names = read_capabilities(self._trees.proc).nodes(minor, gi, ci)
        end = self._clock() + NODE_DEADLINE_S
        while missing := [name for name in names if not self._host.exists(self._settings.device_node(name))]:
            for name in missing:
                self._make_node(name)
            if self._clock() >= end:
                nodes = " and ".join(f"/dev/{name}" for name in missing)
                raise HamiError(
                    f"the instance was made, and has no {nodes} after {NODE_DEADLINE_S:.0f} s",
                    hint="nvidia-modprobe makes them; give the daemon the host's /dev",
                )
            self._sleep(NODE_INTERVAL_S)

    def _make_node(self, name: str) -> None:
        """As nvidia-modprobe does, in the ``/dev`` that this process sees; where it may not, somebody else has to."""
        major = _major(self._trees.proc / "devices")
        path = self._host.seen(self._settings.device_node(name))
        if major is None:
            return
        with suppress(OSError):
            path.parent.mkdir(mode=0o755, exist_ok=True)
            minor = int(name.rpartition("cap")[2])
            os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(major, minor))

    @contextmanager
    def _session(self, what: str) -> Iterator[MigSession]:
        try:
            with session(library_places(self._settings), self._load) as nvml:
                yield nvml
        except NoLibraryError as error:
            raise library_missing(str(error), self._trees) from error
        except NvmlError as error:
            if error.driver_gone:
                raise driver_unavailable(error, self._trees, "") from error
            raise HamiError(f"{what}: {error}", hint=_RIGHTS if error.no_permission else "") from error


class _Made:
    """What one ``create`` has made so far. ``ids`` are the numbers that are known."""

    def __init__(self, nvml: MigSession, gpu: GpuInstance, step: Step) -> None:
        self._nvml, self._step = nvml, step
        self._gpu = gpu
        self._compute: ComputeInstance | None = None
        self.ids: Mapping[str, int] = {}

    def fill(self, shape: GiProfile) -> CiInfo:
        """Make the one compute instance that has all of the GPU instance."""
        self._changed({"gi": self._nvml.gi_info(self._gpu).id})
        self._compute = self._nvml.create_compute_instance(self._gpu, _filling(self._nvml, self._gpu, shape))
        inner = self._nvml.ci_info(self._compute)
        self._changed({**self.ids, "ci": inner.id})
        return inner

    def _changed(self, ids: Mapping[str, int]) -> None:
        self.ids = ids
        self._step(ids)

    def undo(self) -> None:
        """Take it back in reverse. What stays is in the last step; the error that led here is the one that counts."""
        try:
            if self._compute is not None:
                self._nvml.destroy_compute_instance(self._compute)
                self._taken_back({"gi": self.ids["gi"]})
            self._nvml.destroy_gpu_instance(self._gpu)
            self._taken_back({})
        except NvmlError as error:
            log.warning("a MIG instance that failed could not be taken back", error=str(error), **self.ids)

    def _taken_back(self, ids: Mapping[str, int]) -> None:
        with suppress(Exception):  # a journal that fails must not leave more behind
            self._changed(ids)


def _mode(nvml: MigSession, card: Card) -> tuple[bool, bool]:
    """Now, and after a reset. A card that cannot be cut is never in MIG mode."""
    try:
        return nvml.mode(card)
    except NvmlError as error:
        if error.unsupported:
            return False, False
        raise


def _judged(nvml: MigSession, handle: Card, card: str) -> Mode:
    try:
        current, pending = nvml.mode(handle)
    except NvmlError as error:
        if error.unsupported:
            return Mode(capable=False, problem="the card has no MIG")
        raise
    return Mode(
        capable=True,
        current=current,
        pending=pending,
        resets=nvml.architecture(handle) < HOPPER,
        problem=_unchangeable(nvml, handle, card, current, pending),
    )


def _unchangeable(nvml: MigSession, handle: Card, card: str, current: bool, pending: bool) -> str:
    if current != pending:
        return "a change waits for the card's reset"
    if current and (there := _instances(nvml, card, handle)):
        return f"the card has {len(there)} GPU instance(s)"
    pids = nvml.processes(handle)
    if pids:
        return f"processes use the card: {', '.join(map(str, pids))}"
    return ""


def _shapes(nvml: MigSession, card: Card) -> list[GiProfile]:
    """Every profile of the card, once."""
    asked = (nvml.gi_profile(card, number) for number in range(GI_NUMBERS))
    return list({one.id: one for one in asked if one is not None}.values())


def _shape(nvml: MigSession, card: Card, name: str) -> GiProfile:
    """By its name. Drivers round the gigabytes of one profile differently, as 7g.79gb and 7g.80gb."""
    shapes = _shapes(nvml, card)
    exact = [one for one in shapes if one.name == name]
    near = [one for one in shapes if _near(one.name, name)]
    chosen = exact or near
    if len(chosen) != 1:
        known = ", ".join(one.name for one in shapes)
        raise HamiError(f"the card has no MIG profile {name}", hint=f"it has {known}")
    return chosen[0]


def _near(one: str, other: str) -> bool:
    parts = [text.partition(".") for text in (one, other)]
    sizes = [rest.partition("gb") for _slices, _dot, rest in parts]
    if parts[0][0] != parts[1][0] or sizes[0][2] != sizes[1][2] or not all(size[0].isdecimal() for size in sizes):
        return False
    return abs(int(sizes[0][0]) - int(sizes[1][0])) <= 1


def _listed(nvml: MigSession, uuid: str, card: Card) -> list[Partition]:
    if not _mode(nvml, card)[0]:
        return []
    return [partition for one in _instances(nvml, uuid, card) for partition in one.partitions()]


def _instances(nvml: MigSession, uuid: str, card: Card) -> list[_Found]:
    """Every GPU instance of a card that is in MIG mode."""
    return [one for shape in _shapes(nvml, card) for one in _of_shape(nvml, uuid, card, shape)]


def _of_shape(nvml: MigSession, uuid: str, card: Card, shape: GiProfile) -> list[_Found]:
    """Where one goes away meanwhile, it is listed anew, a few times: another thread may be destroying several."""

    def listed() -> list[_Found]:
        return [_found(nvml, uuid, card, shape, one) for one in nvml.gpu_instances(card, shape.id)]

    for _ in range(LISTINGS - 1):
        try:
            return listed()
        except NvmlError as error:
            if error.code not in _GONE:
                raise
    return listed()


def _found(nvml: MigSession, uuid: str, card: Card, shape: GiProfile, handle: GpuInstance) -> _Found:
    info = nvml.gi_info(handle)
    return _Found(
        card=uuid,
        handle=handle,
        shape=shape,
        id=info.id,
        placement=Placement(info.start, info.size),
        compute=tuple(_compute(nvml, card, handle, info.id)),
    )


def _compute(nvml: MigSession, card: Card, instance: GpuInstance, gi: int) -> Iterator[_Compute]:
    asked = (nvml.ci_profile(instance, number) for number in range(CI_NUMBERS))
    for shape in {one.id: one for one in asked if one is not None}.values():
        for handle in nvml.compute_instances(instance, shape.id):
            info = nvml.ci_info(handle)
            device = _device(nvml, card, gi, info)
            yield _Compute(handle=handle, id=info.id, slices=shape.slices, uuid=nvml.uuid(device), device=device)


def _device(nvml: MigSession, card: Card, gi: int, info: CiInfo) -> MigDevice:
    """The MIG device of a compute instance: what its description names, unless a driver names the whole card there."""
    if nvml.uuid(info.device).startswith("MIG-"):
        return info.device
    for index in range(nvml.mig_places(card)):
        device = nvml.mig_device(card, index)
        if device is not None and nvml.numbers(device) == (gi, info.id):
            return device
    raise NvmlError("nvmlDeviceGetMigDeviceHandleByIndex", NOT_FOUND, "NotFound")


def _filling(nvml: MigSession, instance: GpuInstance, shape: GiProfile) -> int:
    """The id of the profile whose compute instance has all of the GPU instance."""
    asked = (nvml.ci_profile(instance, number) for number in range(CI_NUMBERS))
    found = next((one.id for one in asked if one is not None and one.slices == shape.slices), None)
    if found is None:
        raise HamiError(f"no compute instance fills a GPU instance of {shape.name}")
    return found


def _same(nvml: MigSession, card: Card, partition: Partition) -> _Found | None:
    """What is there now of a partition; None where it is gone. HamiError where another one has taken its place."""
    found = next((one for one in _instances(nvml, partition.card, card) if one.placement == partition.placement), None)
    if found is None:
        return None
    there = f"{found.shape.name} at {found.placement.start} of {partition.card}"
    if found.shape.name != partition.profile.rpartition("c.")[2]:
        raise HamiError(f"{there} is not {partition.profile}: somebody has made it anew")
    if partition.uuid and partition.uuid not in [one.uuid for one in found.compute]:
        names = ", ".join(one.uuid for one in found.compute) or "no compute instance"
        raise HamiError(f"{there} is not {partition.uuid} but has {names}: somebody has made it anew")
    if not partition.uuid and (found.compute or partition.ids.get("gi", found.id) != found.id):
        raise HamiError(f"{there} is not the incomplete GPU instance {partition.ids.get('gi')}")
    return found


_I = TypeVar("_I")


def _gone(instance: _I, destroy: Callable[[_I], None], look: Callable[[_I], object]) -> None:
    """One that somebody else has destroyed meanwhile is gone as well, if it does not answer any more."""
    try:
        destroy(instance)
    except NvmlError as error:
        if error.code not in _GONE:
            raise
        try:
            look(instance)
        except NvmlError as silence:
            if silence.code in _GONE:
                return
            raise
        raise


@contextmanager
def _destroying(nvml: MigSession, partition: Partition, compute: _Compute | None = None) -> Iterator[None]:
    try:
        yield
    except NvmlError as error:
        if error.code != IN_USE:
            raise
        pids = _users(nvml, compute) if compute else ()
        by = f" by {', '.join(map(str, pids))}" if pids else ", and no list of processes tells by whom"
        where = f"{partition.profile} at {partition.placement.start} of {partition.card}"
        raise InUseError(f"{where} ({partition.uuid or 'GPU instance'}) is in use{by}") from error


def _users(nvml: MigSession, one: _Compute) -> Sequence[int]:
    with suppress(NvmlError):
        return nvml.processes(one.device)
    return ()


def _major(devices: Path) -> int | None:
    """The number of the capabilities' nodes, from the kernel's list of device numbers."""
    try:
        lines = devices.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.split() for line in lines)
    return next((int(pair[0]) for pair in pairs if len(pair) == 2 and pair[1] == "nvidia-caps"), None)


def open_partitions(settings: NvidiaSettings, host: HostFiles) -> MigPartitions:
    """Nothing is loaded before the first question."""
    return MigPartitions(settings, host)
