"""The state file that the simulated library and the injectors share: one header, then one record for each device.

The records here are the only description. ``C_HEADER`` follows from them and is ``native/state.h``: a test compares the
two, and ``LAYOUT``, a checksum, stands in every state file and library, so that another layout is refused.
"""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar, get_type_hints

DEVICES, LINKS, PROFILES, STARTS = 64, 36, 18, 8
INSTANCES, PROCESSES, EVENTS, FAILURES = 16, 64, 64, 256

MAGIC: Final = b"HAMINVML"
NONE: Final = 0xFFFFFFFF
"""No device, no instance: the value NVML itself uses for "the whole GPU"."""

DRIVER_LOADED, DRIVER_GONE, DRIVER_MISMATCH = range(3)
RIGHT_CONFIG, RIGHT_MONITOR = 1, 2
"""To change instances and to list them; to look into those of others."""


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
class SimEvent(ctypes.Structure):
    """One event. ``sequence`` grows by one for each event of the file's life; 0 marks a slot never used."""

    sequence: U64
    type: U64
    data: U64
    device: U32
    gpu_instance: U32
    compute_instance: U32
    spare: U32


@record
class SimFailure(ctypes.Structure):
    """``symbol`` takes ``delay_ms`` and answers ``code``, if it is not 0, for ``device`` (or ``NONE``: always)."""

    symbol: Text64
    device: U32
    code: U32
    delay_ms: U32
    spare: U32


@record
class SimLink(ctypes.Structure):
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
class SimProfile(ctypes.Structure):
    """One row of a MIG table. ``number`` is NVML's enumeration, ``id`` what every later call takes."""

    number: U32
    id: U32
    memory_mib: U32
    compute_slices: U32
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
class SimGpuInstance(ctypes.Structure):
    """A live GPU instance; ``serial`` 0 marks a free slot. ``profile`` indexes the device's profiles.

    ``held`` counts handles that somebody has open on it and that no list of processes shows.
    """

    serial: U32
    id: U32
    profile: U32
    start: U32
    held: U32
    spare: U32


@record
class SimComputeInstance(ctypes.Structure):
    """A live compute instance, which is a MIG device; ``slot`` is the MIG device's index. ``held`` as above."""

    serial: U32
    owner: U32
    id: U32
    number: U32
    start: U32
    slices: U32
    slot: U32
    held: U32
    uuid: Text96


@record
class SimProcess(ctypes.Structure):
    """A process on a device; ``kind`` 0 compute, 1 graphics, 2 MPS."""

    used: U64
    pid: U32
    kind: U32
    gpu_instance: U32
    compute_instance: U32
    sm_percent: U32
    memory_percent: U32


@record
class SimDevice(ctypes.Structure):
    """What never changes comes first; from ``mig_current`` on is what faults and calls change."""

    uuid: Text96
    name: Text96
    serial: Text32
    bus_id: Text32
    bus_id_legacy: Text16
    pci_domain: U32
    pci_bus: U32
    pci_slot: U32
    pci_device_id: U32
    pci_subsystem_id: U32
    minor: U32
    memory: U64
    reserved: U64
    bar1: U64
    cpus: Annotated[Any, ctypes.c_uint64 * 16]
    nodes: Annotated[Any, ctypes.c_uint64 * 2]
    memory_node: I32
    multiprocessors: U32
    cores: U32
    capability_major: U32
    capability_minor: U32
    architecture: U32
    brand: U32
    ecc: U32
    row_remapping: U32
    addressing: U32
    power_idle_mw: U32
    power_limit_mw: U32
    clock_sm_mhz: U32
    clock_memory_mhz: U32
    pcie_generation: U32
    pcie_width: U32
    levels: Annotated[Any, ctypes.c_uint32 * DEVICES]
    p2p_status: U32
    link_version: U32
    link_count: U32
    fabric_clique: U32
    fabric_cluster: Annotated[Any, ctypes.c_uint8 * 16]
    fabric_state: U32
    mig_capable: U32
    mig_memory_slices: U32
    mig_compute_slices: U32
    mig_max_devices: U32
    profile_count: U32
    profiles: Annotated[Any, SimProfile * PROFILES]
    links: Annotated[Any, SimLink * LINKS]

    mig_current: U32
    mig_pending: U32
    passed_through: U32
    gpu_instances: Annotated[Any, SimGpuInstance * INSTANCES]
    compute_instances: Annotated[Any, SimComputeInstance * INSTANCES]
    used: U64
    lost: U32
    quiet: U32
    unplugged: U32
    asymmetric: U32
    slow_ms: U32
    hang: U32
    recovery_action: U32
    compute_mode: U32
    rows_corrected: U32
    rows_uncorrected: U32
    rows_pending: U32
    ecc_corrected: U64
    ecc_uncorrected: U64
    gpu_percent: U32
    memory_percent: U32
    temperature: U32
    energy_uj: U64
    energy_at_ms: U64
    process_count: U32
    processes: Annotated[Any, SimProcess * PROCESSES]


@record
class SimHeader(ctypes.Structure):
    """``epoch`` grows with each driver that goes away: sessions opened before it are dead.

    ``withheld`` are the rights that callers lack. After ``calls_left`` calls, ``failing`` ones answer ``fail_code``.
    A process that has made the call ``fatal`` dies, once.
    """

    magic: Annotated[bytes, ctypes.c_char * 8]
    layout: U32
    size: U32
    device_size: U32
    device_count: U32
    driver: U32
    epoch: U32
    no_devices: U32
    slow_ms: U32
    cuda_version: U32
    serial: U32
    event_sequence: U64
    driver_version: Text96
    nvml_version: Text96
    events: Annotated[Any, SimEvent * EVENTS]
    withheld: U32
    nodes_withheld: U32
    parent_in_info: U32
    calls_left: U32
    failing: U32
    fail_code: U32
    failure_count: U32
    spare: U32
    fatal: Text64
    failures: Annotated[Any, SimFailure * FAILURES]


RECORDS: Final = (
    SimEvent,
    SimFailure,
    SimLink,
    SimProfile,
    SimGpuInstance,
    SimComputeInstance,
    SimProcess,
    SimDevice,
    SimHeader,
)


_LIMITS = {
    "DEVICES": DEVICES,
    "LINKS": LINKS,
    "PROFILES": PROFILES,
    "STARTS": STARTS,
    "INSTANCES": INSTANCES,
    "PROCESSES": PROCESSES,
    "EVENTS": EVENTS,
    "FAILURES": FAILURES,
}
_NUMBERS = {
    "RIGHT_CONFIG": RIGHT_CONFIG,
    "RIGHT_MONITOR": RIGHT_MONITOR,
    "DRIVER_LOADED": DRIVER_LOADED,
    "DRIVER_GONE": DRIVER_GONE,
    "DRIVER_MISMATCH": DRIVER_MISMATCH,
}
_C_TYPES = {
    ctypes.c_uint8: "uint8_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_char: "char",
}


def _declarations() -> Iterator[str]:
    for name, limit in _LIMITS.items():
        yield f"#define SIM_{name} {limit}"
    yield f'#define SIM_MAGIC "{MAGIC.decode()}"'
    yield f"#define SIM_NONE {NONE:#x}u"
    for name, state in _NUMBERS.items():
        yield f"#define {name} {state}"
    for cls in RECORDS:
        yield ""
        yield "typedef struct {"
        for name, kind in getattr(cls, "_fields_"):  # noqa: B009  # typeshed types the entries as pairs or triples
            yield f"    {_declared(name, kind)};"
        yield f"}} {_c_name(cls)};"
        yield f'_Static_assert(sizeof({_c_name(cls)}) == {ctypes.sizeof(cls)}, "layout.py and the compiler differ");'


def _declared(name: str, kind: Any) -> str:
    length = getattr(kind, "_length_", None)
    element = kind if length is None else kind._type_
    text = _C_TYPES.get(element) or _c_name(element)
    return f"{text} {name}" + (f"[{length}]" if length is not None else "")


def _c_name(cls: type[ctypes.Structure]) -> str:
    """``sim_gpu_instance`` of ``SimGpuInstance``."""
    return re.sub(r"\B([A-Z])", r"_\1", cls.__name__).lower()


_BODY = "\n".join(_declarations())
LAYOUT: Final = zlib.crc32(_BODY.encode())
"""What a state file and a library must agree on."""

C_HEADER: Final = f"""/* The state file. Written by layout.py: change it there, then
   python -c "from vendors.nvidia.simulation.layout import C_HEADER; print(C_HEADER, end='')" */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdint.h>

#define SIM_LAYOUT {LAYOUT:#010x}u
{_BODY}

#endif
"""
