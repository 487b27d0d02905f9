"""The files of a machine that are not NVML: PCI devices in sysfs, the driver's part of /proc, stand-ins in /dev."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hami_plugin.model.machine import Machine, MachineDevice
from vendors.nvidia.simulation import wiring
from vendors.nvidia.simulation.bus import Bus
from vendors.nvidia.simulation.records import cpus

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_CLASS_3D = "0x030200"
_CLASS_BRIDGE = "0x068000"
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
_AWAY: Final = "unplugged"


def write(machine: Machine, directory: Path) -> None:
    """Write everything that is missing. What a fault has changed stays as it is."""
    for position, device in enumerate(machine.devices):
        if not (directory / _AWAY / str(position)).exists():
            _device(machine, device, directory)
    for bus_id in {port.pci for row in wiring.ports(machine) for port in row if port.remote is wiring.Remote.SWITCH}:
        if bus_id:
            _files(_pci(directory, bus_id), {"vendor": "0x10de", "class": _CLASS_BRIDGE, "numa_node": "-1"})
    for name in _CONTROL_NODES:
        _node(directory, name)
    if any(device.extra.get("mig_table") for device in machine.devices):
        _files(directory / "proc/driver/nvidia-caps", {"mig-minors": _mig_minors(machine)})


def write_version(directory: Path, version: str) -> None:
    folder = directory / "proc/driver/nvidia"
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module  {version}  Release Build\n"
    path = folder / "version"
    if path.exists() and path.read_text(encoding="ascii") == text:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def remove_version(directory: Path) -> None:
    (directory / "proc/driver/nvidia/version").unlink(missing_ok=True)


def hide(directory: Path, index: int, bus_id: str, minor: int) -> None:
    """Take a device's files away, as the kernel does for one that is unplugged."""
    for place, aside in _places(directory, index, bus_id, minor):
        aside.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not aside.exists():
            place.rename(aside)


def show(directory: Path, index: int, bus_id: str, minor: int) -> None:
    """Undo ``hide``."""
    for place, aside in _places(directory, index, bus_id, minor):
        if aside.exists():
            aside.rename(place)
    folder = directory / _AWAY / str(index)
    if folder.exists():
        folder.rmdir()


def _places(directory: Path, index: int, bus_id: str, minor: int) -> tuple[tuple[Path, Path], ...]:
    aside = directory / _AWAY / str(index)
    return (
        (_pci(directory, bus_id), aside / "sys"),
        (directory / "proc/driver/nvidia/gpus" / bus_id, aside / "proc"),
        (directory / "dev" / f"nvidia{minor}", aside / "dev"),
    )


def _device(machine: Machine, device: MachineDevice, directory: Path) -> None:
    bus_id = Bus.parse(device.pci).sysfs
    pci_id = int(str(device.extra.get("pci_device_id", "0")), 0)
    facts = {
        "vendor": f"0x{pci_id & 0xFFFF:04x}",
        "device": f"0x{pci_id >> 16:04x}",
        "class": _CLASS_3D,
        "numa_node": str(device.numa),
        "local_cpulist": _ranges(sorted(cpus(machine, device.numa))),
    }
    _files(_pci(directory, bus_id), facts)
    for name in (f"card{device.minor}", f"renderD{128 + device.minor}"):
        (_pci(directory, bus_id) / "drm" / name).mkdir(parents=True, exist_ok=True)
        _node(directory, f"dri/{name}")
    information = {
        "Model": device.model,
        "GPU UUID": device.uuid,
        "Bus Type": "PCIe",
        "Bus Location": bus_id,
        "Device Minor": str(device.minor),
    }
    text = "\n".join(f"{name}: \t {value}" for name, value in information.items())
    _files(directory / "proc/driver/nvidia/gpus" / bus_id, {"information": text})
    _node(directory, f"nvidia{device.minor}")


def _pci(directory: Path, bus_id: str) -> Path:
    return directory / "sys/bus/pci/devices" / bus_id


def _files(folder: Path, content: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def _node(directory: Path, name: str) -> None:
    place = directory / "dev" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()


def _ranges(numbers: list[int]) -> str:
    """A Linux cpulist: ``0-3,8``."""
    parts: list[str] = []
    start = 0
    for position in range(1, len(numbers) + 1):
        if position == len(numbers) or numbers[position] != numbers[position - 1] + 1:
            first, last = numbers[start], numbers[position - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = position
    return ",".join(parts)


def _mig_minors(machine: Machine) -> str:
    """The driver numbers capabilities for every instance that could exist, by the GPU's minor."""
    lines = ["config 1", "monitor 2"]
    per_gpu = _GPU_INSTANCES * (_COMPUTE_INSTANCES + 1)
    for device in sorted(machine.devices, key=lambda device: device.minor):
        number = 3 + device.minor * per_gpu
        for gi in range(_GPU_INSTANCES):
            lines.append(f"gpu{device.minor}/gi{gi}/access {number}")
            lines.extend(
                f"gpu{device.minor}/gi{gi}/ci{ci}/access {number + 1 + ci}" for ci in range(_COMPUTE_INSTANCES)
            )
            number += _COMPUTE_INSTANCES + 1
    return "\n".join(lines)
