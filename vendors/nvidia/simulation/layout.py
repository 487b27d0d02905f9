"""The state file that the simulated library and the injectors share: one header, then one record for each device.

The records here and in ``parts`` are the only description; ``c_header`` says the same to the library.
"""

from __future__ import annotations

import ctypes
from typing import Annotated, Any, Final

from vendors.nvidia.simulation.limits import DEVICES, EVENTS, FAILURES, INSTANCES, LINKS, PROCESSES, PROFILES
from vendors.nvidia.simulation.parts import (
    I32,
    U32,
    U64,
    ComputeInstance,
    Event,
    Failure,
    GpuInstance,
    Link,
    Process,
    Profile,
    Text16,
    Text32,
    Text96,
    record,
)


@record
class Device(ctypes.Structure):
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
    profiles: Annotated[Any, Profile * PROFILES]
    links: Annotated[Any, Link * LINKS]

    mig_current: U32
    mig_pending: U32
    gpu_instances: Annotated[Any, GpuInstance * INSTANCES]
    compute_instances: Annotated[Any, ComputeInstance * INSTANCES]
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
    process_count: U32
    processes: Annotated[Any, Process * PROCESSES]


@record
class Header(ctypes.Structure):
    """``epoch`` grows with each driver that goes away: sessions opened before it are dead."""

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
    events: Annotated[Any, Event * EVENTS]
    failure_count: U32
    spare: U32
    failures: Annotated[Any, Failure * FAILURES]


RECORDS: Final = (Event, Failure, Link, Profile, GpuInstance, ComputeInstance, Process, Device, Header)
