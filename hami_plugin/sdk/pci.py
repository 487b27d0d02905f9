"""A vendor's devices in the kernel's ``/sys/bus/pci``: which exist, their drivers, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.model.usage import DeviceLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One function on the bus. Ids are four lower-case hex digits; ``driver`` is empty when none is bound.

    ``kind`` is the class: six hex digits, of which ``03`` begins a display and ``12`` an accelerator.
    ``path`` is the chain from the root complex through every bridge down to the device.
    """

    address: str
    vendor: str
    device: str
    kind: str = ""
    driver: str = ""
    numa: int | None = None
    path: tuple[str, ...] = ()


def scan(sysfs: Path, vendor: str, devices: Sequence[str] = ()) -> tuple[PciDevice, ...]:
    """The devices of a vendor id such as ``1d0f``, by address; only those with an id in ``devices``, unless that is
    empty.
    """
    folders = [one for one in (sysfs / "bus/pci/devices").glob("*") if _id(one, "vendor") == vendor]
    found = (look(folder) for folder in sorted(folders) if not devices or _id(folder, "device") in devices)
    return tuple(one for one in found if one.vendor == vendor)  # it may have disappeared meanwhile


def look(folder: Path) -> PciDevice:
    """The device in a sysfs directory. Unreadable values are empty: a device may disappear meanwhile."""
    driver, place = folder / "driver", folder.resolve()
    numa = text(folder / "numa_node")
    # From the root complex on, as pci0000:00. What is above it says where sysfs is.
    root = next((i for i, part in enumerate(place.parts) if part.startswith("pci") and ":" in part), None)
    return PciDevice(
        address=folder.name,
        vendor=_id(folder, "vendor"),
        device=_id(folder, "device"),
        kind=_id(folder, "class"),
        driver=driver.resolve().name if driver.exists() else "",
        numa=int(numa) if numa.isdecimal() else None,
        path=place.parts[root:] if root is not None else (),
    )


def level(a: PciDevice, b: PciDevice) -> str:
    """How far apart two devices are, in NVML's terms.

    ``INT`` behind the same bridge, as on one board; ``PIX`` one switch between them; ``PXB`` several; ``PHB`` the root
    complex; ``NODE`` the same NUMA node; ``SYS`` anything else.
    """
    shared = 0
    for one, other in zip(a.path, b.path, strict=False):
        if one != other:
            break
        shared += 1
    if shared == 0:
        return "NODE" if a.numa is not None and a.numa == b.numa else "SYS"
    if shared == 1:
        return "PHB"
    below = max(len(a.path), len(b.path)) - shared
    return {1: "INT", 2: "PIX"}.get(below, "PXB")


def _id(folder: Path, name: str) -> str:
    return text(folder / name).removeprefix("0x")


def text(file: Path) -> str:
    """An attribute's text without the line break; empty if it is unreadable."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def drm_load(folder: Path) -> DeviceLoad:
    """How much of a device is in use by the files that ``amdgpu``, and drivers made of it, have in its directory."""
    return DeviceLoad(
        memory_used=number(folder / "mem_info_vram_used"),
        utilization=number(folder / "gpu_busy_percent"),
        memory_utilization=number(folder / "mem_busy_percent"),
    )


def number(file: Path) -> int | None:
    """An attribute that is a whole number; None for anything else."""
    found = text(file)
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 20 else None
