"""From a machine to the records of the state file: models, PCI addresses, NVLink ports, MIG tables."""

from __future__ import annotations

import ctypes
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.model.machine import Machine, MachineDevice
from vendors.nvidia.simulation import layout
from vendors.nvidia.simulation.layout import LAYOUT, SimDevice, SimHeader, SimLink, SimProfile

_SWITCH_PCI_IDS = {3: 0x1AF110DE, 4: 0x22A310DE}
"""By NVLink generation, where known; 0 otherwise."""


class Remote(IntEnum):
    """What NVML says is at the other end."""

    GPU = 0
    SWITCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One wired port. ``device`` is the peer's position, None for a switch; ``pci`` "" for one that nobody can see.

    ``last`` marks one port for each peer, or one for all switches.
    """

    number: int
    remote: Remote
    device: int | None = None
    pci: str = ""
    pci_device_id: int = 0
    last: bool = False


def nvlink_ports(machine: Machine) -> tuple[tuple[Port, ...], ...]:
    """The wired ports of every device, in device order. Ports that lead nowhere are left out."""
    if machine.via_switch:
        return tuple(_to_switches(machine, index) for index in range(len(machine.devices)))
    return _to_peers(machine)


def port_count(machine: Machine, index: int) -> int:
    """How many ports the device has, wired or not."""
    lanes = machine.lanes[index]
    return max(machine.links_per_device, max(lanes, default=0) if machine.via_switch else sum(lanes))


def _to_peers(machine: Machine) -> tuple[tuple[Port, ...], ...]:
    made: list[list[Port]] = [[] for _ in machine.devices]
    for a, row in enumerate(machine.lanes):
        for b in range(a + 1, len(row)):
            for lane in range(row[b]):
                for here, there in ((a, b), (b, a)):
                    peer = machine.devices[there]
                    port = Port(
                        number=len(made[here]),
                        remote=Remote.GPU,
                        device=there,
                        pci=peer.pci,
                        pci_device_id=int(str(peer.extra.get("pci_device_id", "0")), 0),
                        last=lane == row[b] - 1,
                    )
                    made[here].append(port)
    return tuple(tuple(row) for row in made)


def _to_switches(machine: Machine, index: int) -> tuple[Port, ...]:
    count = max(machine.lanes[index], default=0) or (machine.links_per_device if len(machine.devices) == 1 else 0)
    switches = _switches_of(machine, index, count)
    pci_device_id = _SWITCH_PCI_IDS.get(int(machine.extra.get("fabric_version") or 0), 0)
    return tuple(
        Port(
            number=number,
            remote=Remote.SWITCH,
            pci=switches[number],
            pci_device_id=pci_device_id if switches[number] else 0,
            last=number == count - 1,
        )
        for number in range(count)
    )


def _switches_of(machine: Machine, index: int, count: int) -> Sequence[str]:
    """The bus id of the switch behind each port, "" where the switch is not on this machine's bus."""
    described: Mapping[str, Any] = machine.extra.get("fabric_nvswitch") or {}
    if "location" in described:
        return [""] * count
    total = int(described.get("count") or 1)
    names = [str(name) for name in described.get("pci_bus_ids") or ()] or _invented(machine, total)
    share = described.get("links_per_switch_per_gpu") or count
    shares = (
        [int(number) for number in share] if isinstance(share, list) else [int(share)] * max(1, count // int(share))
    )
    # A device may reach some of the switches only: DGX-2 has six on each of its two boards.
    groups = max(1, total // len(shares))
    first = index * groups // len(machine.devices) * len(shares)
    wired = [names[first + n] for n, links in enumerate(shares) for _ in range(links)]
    return (wired + [names[first]] * count)[:count]


def _invented(machine: Machine, total: int) -> list[str]:
    """Bus ids for switches whose real ones the profile does not tell: free ones on bus f0 and up."""
    taken = {device.pci for device in machine.devices}
    free = (f"0000:{bus:02x}:00.0" for bus in range(0xF0, 0x100))
    names = [name for name in free if name not in taken]
    return names[:total]


UNKNOWN_ARCHITECTURE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One GPU generation. ``code`` is NVML's; with ``rows`` bad memory is remapped by rows, not retired by pages."""

    code: int
    cores_per_sm: int
    sm_mhz: int
    memory_mhz: int
    pcie: int
    rows: bool


_UNKNOWN = Generation(code=UNKNOWN_ARCHITECTURE, cores_per_sm=64, sm_mhz=1500, memory_mhz=1200, pcie=3, rows=False)
_GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        "volta": Generation(code=5, cores_per_sm=64, sm_mhz=1530, memory_mhz=877, pcie=3, rows=False),
        "turing": Generation(code=6, cores_per_sm=64, sm_mhz=1590, memory_mhz=5001, pcie=3, rows=False),
        "ampere": Generation(code=7, cores_per_sm=64, sm_mhz=1410, memory_mhz=1215, pcie=4, rows=True),
        "ada": Generation(code=8, cores_per_sm=128, sm_mhz=2520, memory_mhz=9001, pcie=4, rows=True),
        "hopper": Generation(code=9, cores_per_sm=128, sm_mhz=1980, memory_mhz=2619, pcie=5, rows=True),
        "blackwell": Generation(code=10, cores_per_sm=128, sm_mhz=1965, memory_mhz=3996, pcie=5, rows=True),
    }
)
_WATTS = (
    *(("GB200", 1200), ("B200", 1000), ("H200", 700), ("H100", 700), ("A100-SXM", 400), ("A100", 300), ("A30", 165)),
    *(("V100", 300), ("L40S", 350), ("T4", 70), ("4090", 450), ("2080 Ti", 250)),
)
_BRANDS = (("GeForce", 5), ("Tesla", 2), ("Quadro", 1))
BRAND_NVIDIA: Final = 14
BRAND_GEFORCE: Final = 5


def generation(device: MachineDevice) -> Generation:
    return _GENERATIONS.get(str(device.extra.get("arch", "")), _UNKNOWN)


def watts(model: str) -> int:
    """The power limit."""
    return next((number for name, number in _WATTS if name in model), 300)


def brand(model: str) -> int:
    """NVML's brand code."""
    return next((code for name, code in _BRANDS if name in model), BRAND_NVIDIA)


Table = Mapping[str, Any]
"""One card of ``mig.yaml``: its models, memory, slices, and its ``profiles`` as mappings by column."""

_OF_A_RECORD: Final = frozenset(name for name, *_ in layout.SimProfile._fields_) - {"start_count", "starts", "name"}


@cache
def load_tables() -> Mapping[str, Table]:
    """How each card may be cut, by the names that machine profiles use."""
    content: Any = read_yaml((files(__package__) / "mig.yaml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            card: {**facts, "profiles": [dict(zip(content["columns"], row, strict=True)) for row in facts["profiles"]]}
            for card, facts in content["cards"].items()
        }
    )


def describe_profiles(record: SimDevice, table: Table) -> None:
    """Write into the record how its card may be cut."""
    record.mig_memory_slices = int(table["memory_slices"])
    record.mig_compute_slices = record.mig_max_devices = int(table["compute_slices"])
    rows = table["profiles"]
    record.profile_count = len(rows)
    for position, row in enumerate(rows):
        record.profiles[position] = SimProfile(
            **{field: row[field] for field in _OF_A_RECORD},
            name=str(row["name"]).encode(),
            start_count=len(row["starts"]),
            starts=(ctypes.c_uint32 * layout.STARTS)(*row["starts"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """A PCI address, from the form that sysfs uses (``0000:1b:00.0``)."""

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Bus:
        """ValueError names a text that is no PCI address."""
        try:
            domain, bus, rest = text.split(":")
            slot, function = rest.split(".")
            return cls(domain=int(domain, 16), bus=int(bus, 16), slot=int(slot, 16), function=int(function, 16))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a PCI address such as 0000:1b:00.0") from error

    @property
    def tail(self) -> str:
        return f"{self.bus:02X}:{self.slot:02X}.{self.function:X}"

    @property
    def sysfs(self) -> str:
        return f"{self.domain:04x}:{self.tail.lower()}"


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


def header(machine: Machine) -> SimHeader:
    """ValueError when the machine has more devices than the library can hold."""
    size = len(machine.devices)
    if size > layout.DEVICES:
        raise ValueError(f"{machine.name} has {size} devices; the simulated library holds {layout.DEVICES} at most")
    return SimHeader(
        magic=layout.MAGIC,
        layout=LAYOUT,
        size=ctypes.sizeof(SimHeader),
        device_size=ctypes.sizeof(SimDevice),
        device_count=size,
        cuda_version=CUDA_VERSION,
        driver_version=DRIVER_VERSION.encode(),
        nvml_version=nvml_version(DRIVER_VERSION).encode(),
    )


def nvml_version(driver: str) -> str:
    """NVML's own version carries the CUDA major version in front."""
    return f"{CUDA_VERSION // 1000}.{driver}"


def sysfs_name(device: SimDevice) -> str:
    """``0000:1b:00.0`` from NVML's ``00000000:1B:00.0``."""
    return Bus.parse(device.bus_id.decode()).sysfs


def devices(machine: Machine) -> list[SimDevice]:
    ports = nvlink_ports(machine)
    tables = load_tables() if any(device.extra.get("mig_table") for device in machine.devices) else {}
    return [_device_record(machine, position, ports[position], tables) for position in range(len(machine.devices))]


def cpus(machine: Machine, numa: int) -> set[int]:
    """CPUs near to a NUMA node; all of them when the node is not known."""
    lists = [machine.numa_nodes[numa]] if numa in machine.numa_nodes else machine.numa_nodes.values()
    found: set[int] = set()
    for part in ",".join(lists).split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _device_record(machine: Machine, position: int, ports: tuple[Port, ...], tables: Mapping[str, Table]) -> SimDevice:
    source = machine.devices[position]
    record = SimDevice(
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
    record.link_count = port_count(machine, position)
    record.link_version = _LINK_VERSIONS.get(int(machine.extra.get("fabric_version") or 0), 0)
    for port in ports:
        record.links[port.number] = _link(port)
    if record.mig_capable:
        describe_profiles(record, tables[str(source.extra["mig_table"])])
    return record


def _address(record: SimDevice, source: MachineDevice) -> None:
    bus = Bus.parse(source.pci)
    record.bus_id = f"{bus.domain:08X}:{bus.tail}".encode()
    record.bus_id_legacy = f"{bus.domain:04X}:{bus.tail}".encode()
    record.pci_domain, record.pci_bus, record.pci_slot = bus.domain, bus.bus, bus.slot
    record.pci_device_id = int(str(source.extra.get("pci_device_id", "0")), 0)
    record.pci_subsystem_id = 0x13C010DE if record.pci_device_id else 0


def _model(record: SimDevice, source: MachineDevice) -> None:
    facts = generation(source)
    capability = str(source.extra.get("cuda_cc", "0.0")).split(".")
    record.capability_major, record.capability_minor = int(capability[0]), int(capability[1])
    record.multiprocessors = int(source.extra.get("sm_count") or 0)
    record.cores = record.multiprocessors * facts.cores_per_sm
    record.architecture = facts.code
    record.brand = brand(source.model)
    if record.brand != BRAND_GEFORCE:
        record.serial = f"16{zlib.crc32(source.uuid.encode()):011d}".encode()
    record.ecc = bool(source.extra.get("ecc"))
    record.row_remapping = facts.rows
    record.addressing = _ADDRESSING_ATS if source.extra.get("c2c") else 0
    record.power_limit_mw = watts(source.model) * 1000
    record.power_idle_mw = record.power_limit_mw // 8
    record.clock_sm_mhz, record.clock_memory_mhz = facts.sm_mhz, facts.memory_mhz
    record.pcie_generation, record.pcie_width = facts.pcie, 16
    record.bar1 = (1 << max(28, (record.memory - 1).bit_length())) if record.ecc else 256 << 20


def _affinity(record: SimDevice, machine: Machine, source: MachineDevice) -> None:
    for cpu in cpus(machine, source.numa):
        record.cpus[cpu // 64] |= 1 << cpu % 64
    for node in [source.numa] if source.numa >= 0 else machine.numa_nodes:
        record.nodes[node // 64] |= 1 << node % 64
    record.memory_node = int(source.extra.get("gpu_numa_id", -1))


def _fabric(record: SimDevice, source: MachineDevice) -> None:
    cluster = source.extra.get("fabric_cluster_uuid")
    if cluster is None:
        return
    record.fabric_cluster[:] = uuid.UUID(str(cluster)).bytes
    record.fabric_clique = int(source.extra.get("fabric_clique_id") or 0)
    record.fabric_state = _FABRIC_COMPLETED


def _link(port: Port) -> SimLink:
    link = SimLink(
        active=1,
        last=port.last,
        remote_type=port.remote,
        remote_device=layout.NONE if port.device is None else port.device,
        remote_pci_device_id=port.pci_device_id,
    )
    if not port.pci:
        link.remote_bus_id = HIDDEN_BUS_ID.encode()
        link.remote_domain = link.remote_bus = link.remote_slot = layout.NONE
        return link
    bus = Bus.parse(port.pci)
    link.remote_bus_id = f"{bus.domain:08X}:{bus.tail}".encode()
    link.remote_domain, link.remote_bus, link.remote_slot = bus.domain, bus.bus, bus.slot
    return link
