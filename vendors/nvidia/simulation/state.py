"""Opening the state file: creating it once, and changing it under the lock that the library takes too."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from hami_plugin.errors import HamiError
from hami_plugin.model.machine import Machine
from vendors.nvidia.simulation import layout, records
from vendors.nvidia.simulation.layout import LAYOUT, SimDevice, SimHeader

STATE: Final = "state"
LOCK_DEADLINE_S: Final = 10.0
_FIXED = SimDevice.mig_current.offset  # type: ignore[attr-defined]  # fields of a ctypes structure are descriptors


class StateError(HamiError):
    """A folder whose state file cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """The mapped file. Valid inside ``opened`` only; what is written here the library sees at once."""

    header: SimHeader
    devices: Sequence[SimDevice]


def create(machine: Machine, path: Path) -> None:
    """Write the state of an untouched machine, unless ``path`` holds that machine already.

    A file of another layout (an older release wrote it) is replaced; one of another machine is an error.
    """
    fixed = records.devices(machine)
    content = bytes(records.header(machine)) + b"".join(bytes(device) for device in fixed)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not _readable(path):
        path.unlink(missing_ok=True)
    if not path.exists():
        _write_once(path, content)
    with opened(path) as state:
        same = len(state.devices) == len(fixed) and all(
            bytes(here)[:_FIXED] == bytes(there)[:_FIXED] for here, there in zip(state.devices, fixed, strict=True)
        )
    if not same:
        raise StateError(
            f"{path} holds another machine than {machine.name}", hint="remove the folder, or choose another"
        )


@contextmanager
def opened(path: Path) -> Iterator[MachineState]:
    """Map the file for reading and writing, alone. StateError when it is missing or of another layout."""
    try:
        file = path.open("r+b")
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}", hint="name the folder of a running simulation") from error
    with file:
        _lock(file, path)
        try:
            yield _mapped(file, path)
        finally:
            # Closing is not enough: the map holds a duplicate of the descriptor, and with it the lock.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.utime(file.fileno())  # who waits for events is told by the file, since a map tells nobody


def _mapped(file: IO[Any], path: Path) -> MachineState:
    size = os.fstat(file.fileno()).st_size
    if size < ctypes.sizeof(SimHeader):
        raise StateError(f"{path} is no state file", hint="name the folder of a running simulation")
    memory = mmap.mmap(file.fileno(), size)
    header = SimHeader.from_buffer(memory)
    expected = (layout.MAGIC, LAYOUT, ctypes.sizeof(SimHeader) + header.device_count * ctypes.sizeof(SimDevice))
    if (header.magic, header.layout, size) != expected:
        raise StateError(f"{path} is of another layout", hint="create the simulation again with this release")
    devices = (SimDevice * header.device_count).from_buffer(memory, ctypes.sizeof(SimHeader))
    return MachineState(header=header, devices=devices)  # type: ignore[arg-type]  # an array is a sequence but for its name


def _readable(path: Path) -> bool:
    try:
        with opened(path):
            return True
    except StateError:
        return False


def _write_once(path: Path, content: bytes) -> None:
    """Whoever links first has written the file; the others use it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".state-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o666)
        os.link(name, path)
    except FileExistsError:
        pass
    finally:
        Path(name).unlink(missing_ok=True)


def _lock(file: IO[Any], path: Path) -> None:
    end = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise StateError(
                    f"{path} stayed locked for {LOCK_DEADLINE_S:.0f} s", hint="look for a stopped process that uses it"
                ) from error
            time.sleep(0.0005)
        else:
            return


_COMPUTE_PROFILES = (1, 2, 3, 4, 7)
"""Slices by NVML's number of a compute instance's profile."""


def cut_instances(machine: Machine, state: MachineState) -> None:
    """Make the instances once: what has become of them since stays. ValueError names one that has no place."""
    if state.header.serial:
        return
    for source, device in zip(machine.devices, state.devices, strict=True):
        wanted = source.extra.get("mig") or ()
        device.mig_current = device.mig_pending = int(bool(wanted)) or device.mig_current
        for slot, one in enumerate(wanted):
            make_instance(state, device, slot, str(one["profile"]), int(one["start"]), name=str(slot))


def instance_numbers(device: SimDevice) -> Iterator[tuple[int, int | None]]:
    """The number of each GPU instance that there is, and with it of each compute instance in it."""
    owners = {gi.serial: gi.id for gi in device.gpu_instances if gi.serial}
    yield from ((number, None) for number in owners.values())
    yield from ((owners[ci.owner], ci.id) for ci in device.compute_instances if ci.serial and ci.owner in owners)


def make_instance(state: MachineState, device: SimDevice, slot: int, profile: str, start: int, *, name: str) -> None:
    """Make one in a free slot; its UUID follows from ``name``. ValueError where the card has no such place."""
    names = [bytes(one.name).decode() for one in device.profiles[: device.profile_count]]
    if profile not in names or start not in list(device.profiles[names.index(profile)].starts):
        raise ValueError(f"{device.name.decode()} has no MIG profile {profile} that starts at {start}")
    row = device.profiles[names.index(profile)]
    gi, ci = device.gpu_instances[slot], device.compute_instances[slot]
    state.header.serial += 2
    gi.serial, gi.profile, gi.start = state.header.serial - 1, names.index(profile), start
    gi.id = device.mig_memory_slices // row.size - 1 + start // row.size
    ci.serial, ci.owner, ci.slot, ci.slices = state.header.serial, gi.serial, slot, row.compute_slices
    ci.number = _COMPUTE_PROFILES.index(row.compute_slices)
    ci.uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{device.uuid.decode()}/{name}')}".encode()
