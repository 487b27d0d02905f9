"""From a machine to the records of the state file, as they are before anything happens."""

from __future__ import annotations

import ctypes
import uuid
import zlib
from collections.abc import Mapping
from typing import Final

from hami_plugin.model.machine import Machine, MachineDevice
from vendors.nvidia.simulation import limits, models, wiring
from vendors.nvidia.simulation.bus import Bus
from vendors.nvidia.simulation.c_header import LAYOUT
from vendors.nvidia.simulation.layout import Device, Header
from vendors.nvidia.simulation.mig_tables import Table, describe, load
from vendors.nvidia.simulation.parts import Link

DRIVER_VERSION: Final = "570.124.06"
CUDA_VERSION: Final = 12080
HIDDEN_BUS_ID: Final = "FFFFFFF:FFFF:FF"
"""What NVML shows for a switch that the hypervisor keeps to itself. NCCL looks for this very text."""

_LEVELS = {"X": 0, "INT": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_P2P = {"": 0, "chipset_not_supported": 1, "gpu_not_supported": 2, "disabled_by_regkey": 4, "not_supported": 5}
_LINK_VERSIONS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7, 6: 8}
"""NVML's enumeration counts 2.2 and 3.1 as versions too."""

_FABRIC_COMPLETED = 3
_ADDRESSING_ATS = 2
_IDLE_CELSIUS = 31


def header(machine: Machine) -> Header:
    """ValueError when the machine has more devices than the library can hold."""
    size = len(machine.devices)
    if size > limits.DEVICES:
        raise ValueError(f"{machine.name} has {size} devices; the simulated library holds {limits.DEVICES} at most")
    return Header(
        magic=limits.MAGIC,
        layout=LAYOUT,
        size=ctypes.sizeof(Header),
        device_size=ctypes.sizeof(Device),
        device_count=size,
        cuda_version=CUDA_VERSION,
        driver_version=DRIVER_VERSION.encode(),
        nvml_version=nvml_version(DRIVER_VERSION).encode(),
    )


def nvml_version(driver: str) -> str:
    """NVML's own version carries the CUDA major version in front."""
    return f"{CUDA_VERSION // 1000}.{driver}"


def sysfs_name(device: Device) -> str:
    """``0000:1b:00.0`` from NVML's ``00000000:1B:00.0``."""
    return Bus.parse(device.bus_id.decode()).sysfs


def devices(machine: Machine) -> list[Device]:
    ports = wiring.ports(machine)
    names = {str(device.extra["mig_table"]) for device in machine.devices if device.extra.get("mig_table")}
    tables = {name: load(name) for name in names}
    return [_device(machine, position, ports[position], tables) for position in range(len(machine.devices))]


def cpus(machine: Machine, numa: int) -> set[int]:
    """CPUs near to a NUMA node; all of them when the node is not known."""
    lists = [machine.numa_nodes[numa]] if numa in machine.numa_nodes else machine.numa_nodes.values()
    found: set[int] = set()
    for part in ",".join(lists).split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _device(machine: Machine, position: int, ports: tuple[wiring.Port, ...], tables: Mapping[str, Table]) -> Device:
    source = machine.devices[position]
    record = Device(
        uuid=source.uuid.encode(),
        name=source.model.encode(),
        minor=source.minor,
        memory=source.memory << 20,
        reserved=max(256, source.memory // 128) << 20,
        p2p_status=_P2P[machine.p2p_status],
        mig_capable=bool(source.extra.get("mig_table")),
        temperature=_IDLE_CELSIUS,
    )
    _address(record, source)
    _model(record, source)
    _affinity(record, machine, source)
    _fabric(record, source)
    for peer, level in enumerate(machine.levels[position]):
        record.levels[peer] = _LEVELS[level]
    record.link_count = wiring.port_count(machine, position)
    record.link_version = _LINK_VERSIONS.get(int(machine.extra.get("fabric_version") or 0), 0)
    for port in ports:
        record.links[port.number] = _link(port)
    if record.mig_capable:
        describe(record, tables[str(source.extra["mig_table"])])
    return record


def _address(record: Device, source: MachineDevice) -> None:
    bus = Bus.parse(source.pci)
    record.bus_id = f"{bus.domain:08X}:{bus.tail}".encode()
    record.bus_id_legacy = f"{bus.domain:04X}:{bus.tail}".encode()
    record.pci_domain, record.pci_bus, record.pci_slot = bus.domain, bus.bus, bus.slot
    record.pci_device_id = int(str(source.extra.get("pci_device_id", "0")), 0)
    record.pci_subsystem_id = 0x13C010DE if record.pci_device_id else 0


def _model(record: Device, source: MachineDevice) -> None:
    facts = models.generation(source)
    capability = str(source.extra.get("cuda_cc", "0.0")).split(".")
    record.capability_major, record.capability_minor = int(capability[0]), int(capability[1])
    record.multiprocessors = int(source.extra.get("sm_count") or 0)
    record.cores = record.multiprocessors * facts.cores_per_sm
    record.architecture = facts.code
    record.brand = models.brand(source.model)
    if record.brand != models.BRAND_GEFORCE:
        record.serial = f"16{zlib.crc32(source.uuid.encode()):011d}".encode()
    record.ecc = bool(source.extra.get("ecc"))
    record.row_remapping = facts.rows
    record.addressing = _ADDRESSING_ATS if source.extra.get("c2c") else 0
    record.power_limit_mw = models.watts(source.model) * 1000
    record.power_idle_mw = record.power_limit_mw // 8
    record.clock_sm_mhz, record.clock_memory_mhz = facts.sm_mhz, facts.memory_mhz
    record.pcie_generation, record.pcie_width = facts.pcie, 16
    record.bar1 = (1 << max(28, (record.memory - 1).bit_length())) if record.ecc else 256 << 20


def _affinity(record: Device, machine: Machine, source: MachineDevice) -> None:
    for cpu in cpus(machine, source.numa):
        record.cpus[cpu // 64] |= 1 << cpu % 64
    for node in [source.numa] if source.numa >= 0 else machine.numa_nodes:
        record.nodes[node // 64] |= 1 << node % 64
    record.memory_node = int(source.extra.get("gpu_numa_id", -1))


def _fabric(record: Device, source: MachineDevice) -> None:
    cluster = source.extra.get("fabric_cluster_uuid")
    if cluster is None:
        return
    record.fabric_cluster[:] = uuid.UUID(str(cluster)).bytes
    record.fabric_clique = int(source.extra.get("fabric_clique_id") or 0)
    record.fabric_state = _FABRIC_COMPLETED


def _link(port: wiring.Port) -> Link:
    link = Link(
        active=1,
        last=port.last,
        remote_type=port.remote,
        remote_device=limits.NONE if port.device is None else port.device,
        remote_pci_device_id=port.pci_device_id,
    )
    if not port.pci:
        link.remote_bus_id = HIDDEN_BUS_ID.encode()
        link.remote_domain = link.remote_bus = link.remote_slot = limits.NONE
        return link
    bus = Bus.parse(port.pci)
    link.remote_bus_id = f"{bus.domain:08X}:{bus.tail}".encode()
    link.remote_domain, link.remote_bus, link.remote_slot = bus.domain, bus.bus, bus.slot
    return link
