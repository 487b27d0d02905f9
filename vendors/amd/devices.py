"""One look at AMD's GPUs, by the kernel's compute topology. A GPU that fails is a sighting with a fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Links
from hami_plugin.sdk import pci
from hami_plugin.sdk.hardware import Hardware, distances
from vendors.amd.kfd import KfdNode, nodes

DEVICE_TYPE: Final = "AMD"
LIBRARY: Final = "vgpu/libamvgpu.so"
"""HAMi's limiter for AMD, below the hook directory. It needs glibc 2.34 in the container."""
GPUS: Final = Hardware(title="AMD GPU", vendors=("1002",), kinds=("03", "12"), module="amdgpu")
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
    library = host.paths.hook / LIBRARY
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
