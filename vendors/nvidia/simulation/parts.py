"""What stands more than once in the state file: links, profiles, instances, processes, events, injected failures."""

from __future__ import annotations

import ctypes
from typing import Annotated, Any, TypeVar, get_type_hints

from vendors.nvidia.simulation.limits import STARTS

S = TypeVar("S", bound=type[ctypes.Structure])

U32 = Annotated[int, ctypes.c_uint32]
I32 = Annotated[int, ctypes.c_int32]
U64 = Annotated[int, ctypes.c_uint64]
Text16 = Annotated[bytes, ctypes.c_char * 16]
Text32 = Annotated[bytes, ctypes.c_char * 32]
Text64 = Annotated[bytes, ctypes.c_char * 64]
Text96 = Annotated[bytes, ctypes.c_char * 96]


def record(cls: S) -> S:
    """Turn the annotations of ``cls`` into the fields of a C structure, in order."""
    hints = get_type_hints(cls, include_extras=True)
    cls._fields_ = [(name, hints[name].__metadata__[0]) for name in cls.__annotations__]
    return cls


@record
class Event(ctypes.Structure):
    """One event. ``sequence`` grows by one for each event of the file's life; 0 marks a slot never used."""

    sequence: U64
    type: U64
    data: U64
    device: U32
    gpu_instance: U32
    compute_instance: U32
    spare: U32


@record
class Failure(ctypes.Structure):
    """``symbol`` answers ``code`` for ``device`` (or ``NONE``: always)."""

    symbol: Text64
    device: U32
    code: U32


@record
class Link(ctypes.Structure):
    """One NVLink port. ``last`` marks the one that the ``asymmetric`` fault takes down."""

    active: U32
    last: U32
    remote_type: U32
    remote_device: U32
    remote_pci_device_id: U32
    remote_domain: U32
    remote_bus: U32
    remote_slot: U32
    remote_bus_id: Text32


@record
class Profile(ctypes.Structure):
    """One row of a MIG table. ``number`` is NVML's enumeration, ``id`` what every later call takes."""

    number: U32
    id: U32
    memory_mib: U32
    compute_slices: U32
    memory_slices: U32
    multiprocessors: U32
    max_instances: U32
    copy_engines: U32
    decoders: U32
    encoders: U32
    jpegs: U32
    ofas: U32
    size: U32
    start_count: U32
    starts: Annotated[Any, ctypes.c_uint32 * STARTS]
    name: Text32


@record
class GpuInstance(ctypes.Structure):
    """A live GPU instance; ``serial`` 0 marks a free slot. ``profile`` indexes the device's profiles."""

    serial: U32
    id: U32
    profile: U32
    start: U32


@record
class ComputeInstance(ctypes.Structure):
    """A live compute instance, which is a MIG device; ``slot`` is the MIG device's index."""

    serial: U32
    owner: U32
    id: U32
    number: U32
    start: U32
    slices: U32
    slot: U32
    spare: U32
    uuid: Text96


@record
class Process(ctypes.Structure):
    """A process on a device; ``kind`` 0 compute, 1 graphics, 2 MPS."""

    used: U64
    pid: U32
    kind: U32
    gpu_instance: U32
    compute_instance: U32
    sm_percent: U32
    memory_percent: U32
