"""AMD's GPUs as the kernel's compute topology shows them: discovery, health, links. No tool or library is needed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import Driver, PollingDriver, distances, pci
from hami_plugin.sdk.pci import text
from vendors.amd.rules import DEVICE_TYPE
from vendors.amd.settings import GPUS, AmdSettings

XGMI = 11
ONE_HOP = 15
"""Weight of a direct xGMI link. What the tools call hops is 1 over any number of them."""
_VRAM = ("1", "2")
"""Heap types of memory banks: visible to the host, and not."""
MIB = 1024 * 1024
_ON_BUS = 0xFFFF
"""Of a place, what is the card's on the bus. Newer kernels write the number of a partition into the highest bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU, or one partition of it. ``links`` has the number of each node at the other end of a direct xGMI link.

    ``unique_id`` is 0 where the card has none; ``memory`` is in MiB.
    """

    number: int
    address: str
    render: int
    units: int
    memory: int
    unique_id: int = 0
    links: tuple[int, ...] = ()


def nodes(sysfs: Path) -> tuple[KfdNode | str, ...]:
    """Every node that computes and can be opened, in the kernel's order; a node that cannot be read is told in words.

    Processors are nodes too, and have no compute units.
    """
    folders = [one for one in (sysfs / "class/kfd/kfd/topology/nodes").glob("*") if one.name.isdecimal()]
    read = (_node(folder) for folder in sorted(folders, key=lambda one: int(one.name)))
    return tuple(one for one in read if one is not None)


def _node(folder: Path) -> KfdNode | str | None:
    facts = _properties(folder)
    if not facts:
        return f"compute node {folder.name} tells nothing: {folder / 'properties'} cannot be read"
    if not facts.get("simd_count") or facts.get("drm_render_minor", 0) <= 0:
        return None
    place = facts.get("location_id", 0) & _ON_BUS
    banks = (_properties(bank) for bank in (folder / "mem_banks").glob("*"))
    return KfdNode(
        number=int(folder.name),
        address=f"{facts.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7:x}",
        render=facts["drm_render_minor"],
        units=facts["simd_count"] // max(1, facts.get("simd_per_cu", 1)),
        memory=sum(bank.get("size_in_bytes", 0) for bank in banks if str(bank.get("heap_type")) in _VRAM) // MIB,
        unique_id=facts.get("unique_id", 0),
        links=tuple(_direct(folder)),
    )


def _direct(folder: Path) -> Iterator[int]:
    for link in sorted((folder / "io_links").glob("*")):
        facts = _properties(link)
        if facts.get("type") == XGMI and 0 < facts.get("weight", 0) <= ONE_HOP and "node_to" in facts:
            yield facts["node_to"]


def _properties(folder: Path) -> Mapping[str, int]:
    """Lines of a name and a number."""
    pairs = (line.split() for line in text(folder / "properties").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


LIMITER: Final = "vgpu/libamvgpu.so"
"""HAMi's limiter for AMD, below the hook directory. It needs glibc 2.34 in the container."""
_UNCORRECTABLE = re.compile(r"^ue:\s*(\d+)", re.MULTILINE)
MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "738c": "AMD Instinct MI100",
        "7408": "AMD Instinct MI250X",
        "740c": "AMD Instinct MI250",
        "740f": "AMD Instinct MI210",
        "74a0": "AMD Instinct MI300A",
        "74a1": "AMD Instinct MI300X",
        "74a5": "AMD Instinct MI325X",
    }
)
"""For cards whose firmware does not tell their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device's ``traits``: compute units, its node in the topology, and the names of its nodes in ``/dev``.

    ``unlimited`` says why nothing on this host holds a container to a part of it; empty where something does.
    """

    units: int
    node: int
    dev: tuple[str, ...]
    visible: str = ""
    links: tuple[int, ...] = ()
    unlimited: str = ""


def gpu(device: Device) -> Gpu:
    """The traits of an AMD GPU."""
    return device.traits if isinstance(device.traits, Gpu) else Gpu(units=0, node=-1, dev=())


def look(paths: HostPaths, ask: Callable[[str | None], None]) -> Discovery:
    """Every GPU, and every partition of one that is partitioned, in the kernel's order."""
    found = nodes(paths.sysfs)
    computing = [one for one in found if isinstance(one, KfdNode)]
    if not computing:
        raise _absent(paths)
    parts = Counter(one.address for one in computing)
    seen: Counter[str] = Counter()
    sightings = []
    for index, node in enumerate(computing):
        part = seen[node.address] if parts[node.address] > 1 else None
        seen[node.address] += 1
        device = _device(paths, node, index, part)
        ask(device.uuid)
        sightings.append(Sighting(device=device, fault=_fault(paths, device)))
    return Discovery(
        sightings=tuple(sightings),
        problems=tuple(one for one in found if isinstance(one, str)),
        facts={"driver": GPUS.version(paths) or "amdgpu of the kernel"},
    )


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Direct xGMI links, and the distance on the PCI bus. Partitions of one card are on one board."""
    return distances(devices, GPUS.plugged(paths), lanes=lambda a, b: gpu(a).links.count(gpu(b).node), fabric="XGMI")


METERED: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(1, 1): 24, (1, 2): 24, (1, 3): 24, (1, 4): 24, (1, 5): 88}
)
"""Where the kernel's table of metrics has the energy counter, by the table's format and content revision."""
_JOULE = 1 << 16
"""Units of that counter in a joule."""


def energy(paths: HostPaths, devices: Sequence[Device]) -> Mapping[str, float]:
    """By the counter in each card's ``gpu_metrics``. Partitions of one card have a part of it each."""
    parts = Counter(device.pci for device in devices)
    counted = {address: joules(paths.sysfs / "bus/pci/devices" / address / "gpu_metrics") for address in parts}
    return {device.uuid: drawn / parts[device.pci] for device in devices if (drawn := counted[device.pci]) is not None}


def load(paths: HostPaths, devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
    """By the kernel's files of each card. Partitions of one card have none of their own, and are left out."""
    parts = Counter(device.pci for device in devices)
    return {
        device.uuid: pci.drm_load(paths.sysfs / "bus/pci/devices" / device.pci)
        for device in devices
        if parts[device.pci] == 1
    }


def joules(table: Path) -> float | None:
    """None for a table that is missing, of another format, or too short."""
    try:
        with table.open("rb") as file:
            content = file.read(4096)
    except OSError:
        return None
    at = METERED.get((content[2], content[3])) if len(content) >= 4 else None
    counter = content[at : at + 8] if at else b""
    number = int.from_bytes(counter, sys.byteorder)
    return number / _JOULE if len(counter) == 8 and number != 2**64 - 1 else None


def _absent(paths: HostPaths) -> DriverUnavailableError:
    driven = [one.address for one in GPUS.plugged(paths) if one.driver == GPUS.module]
    if not driven:
        return GPUS.absent(paths)
    return DriverUnavailableError(
        DriverReason.NO_DRIVER,
        f"amdgpu drives {', '.join(driven)}, and the kernel's compute topology has none of them",
        hint="look for kfd in the kernel's log",
    )


def _device(paths: HostPaths, node: KfdNode, index: int, part: int | None) -> Device:
    folder = paths.sysfs / "bus/pci/devices" / node.address
    on_bus = pci.look(folder)
    uid = f"GPU-{node.unique_id:016x}" if node.unique_id else f"AMD-{re.sub('[:.]', '-', node.address)}"
    return Device(
        uuid=uid if part is None else f"{uid}-{part}",
        family=DEVICE_TYPE,
        index=index,
        minor=node.render,
        model=pci.text(folder / "product_name") or MODELS.get(on_bus.device, f"AMD GPU {on_bus.device}".strip()),
        memory=node.memory,
        pci=node.address,
        numa=on_bus.numa,
        mode="",
        traits=Gpu(
            units=node.units,
            node=node.number,
            dev=_dev(paths, node.render),
            visible=uid if node.unique_id and part is None else "",
            links=node.links,
            unlimited=unlimited(HostFiles(paths=paths)),
        ),
    )


def unlimited(host: HostFiles) -> str:
    """Why nothing on this host holds a container to a part of a card; empty where HAMi's limiter is installed."""
    library = host.paths.hook / LIMITER
    if host.paths.prepared or host.is_file(library):
        return ""
    return f"there is no {library} on the host; install HAMi's libamvgpu.so or ask for whole cards"


def _dev(paths: HostPaths, render: int) -> tuple[str, ...]:
    """The names in ``/dev`` of one GPU: what it renders with, and the display beside it."""
    beside = (paths.sysfs / f"class/drm/renderD{render}/device/drm").glob("card*")
    return (*(f"dri/{one.name}" for one in sorted(beside)), f"dri/renderD{render}")


def _fault(paths: HostPaths, device: Device) -> Fault | None:
    missing = [name for name in ("kfd", *gpu(device).dev) if not (paths.dev / name).exists()]
    if missing:
        return Fault(reason="DeviceNodeMissing", message=f"there is no {paths.dev / missing[0]}")
    if not device.memory or not gpu(device).units:
        what = f"{device.memory} MiB of memory and {gpu(device).units} compute units"
        return Fault(reason="NothingToShare", message=f"the kernel tells of {what}")
    for counter in sorted((paths.sysfs / "bus/pci/devices" / device.pci / "ras").glob("*_err_count")):
        errors = _UNCORRECTABLE.search(pci.text(counter))
        if errors and int(errors[1]):
            block = counter.name.removesuffix("_err_count")
            message = f"{errors[1]} uncorrectable errors in {block}"
            return Fault(reason="RasUncorrectable", message=message, action=Action.RESET)
    return None


def open_driver(settings: AmdSettings, paths: HostPaths) -> Driver:
    """The amdgpu driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(
        partial(look, roots), partial(links, roots), energy=partial(energy, roots), load=partial(load, roots)
    )
