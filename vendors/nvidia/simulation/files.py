"""The files of a machine that are not NVML: sysfs, ``/proc``, stand-ins in ``/dev``, and what the driver installs."""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from hami_plugin.errors import HamiError
from hami_plugin.model.machine import Machine, MachineDevice
from vendors.nvidia.host import read_capabilities
from vendors.nvidia.simulation.records import Bus, Remote, cpus, nvlink_ports
from vendors.nvidia.simulation.state import MachineState, instance_numbers

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_CLASS_3D = "0x030200"
_CLASS_BRIDGE = "0x068000"
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
_AWAY: Final = "unplugged"


def write_files(machine: Machine, directory: Path) -> None:
    """Write everything that is missing. What a fault has changed stays as it is."""
    for position, device in enumerate(machine.devices):
        if not (directory / _AWAY / str(position)).exists():
            _device(machine, device, directory)
    for bus_id in {port.pci for row in nvlink_ports(machine) for port in row if port.remote is Remote.SWITCH}:
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


X86_64_LIBC6 = 0x0303


def loader_cache(libraries: Mapping[str, str]) -> bytes:
    """The file that lists 64-bit libraries: paths by the names that programs ask for."""
    header_size, entry_size = 48, 24
    texts = bytearray()
    start = header_size + entry_size * len(libraries)
    entries = bytearray()
    for name in sorted(libraries, reverse=True):
        places = []
        for text in (name, libraries[name]):
            places.append(start + len(texts))
            texts += text.encode() + b"\0"
        entries += struct.pack("<iIIIQ", X86_64_LIBC6, *places, 0, 0)
    little_endian = 2
    header = struct.pack("<17s3sIIB3xI12x", b"glibc-ld.so.cache", b"1.1", len(libraries), len(texts), little_endian, 0)
    return header + bytes(entries) + bytes(texts)


DRIVER_ROOT: Final = "driver-root"
HOOK: Final = "usr/bin/nvidia-cdi-hook"
FOLDER: Final = "usr/lib/x86_64-linux-gnu"
LIBRARIES: Final = {
    "libcuda": (".so.1", ".so"),
    "libcudadebugger": (".so.1",),
    "libnvcuvid": (".so.1", ".so"),
    "libnvidia-allocator": (".so.1", ".so"),
    "libnvidia-cfg": (".so.1", ".so"),
    "libnvidia-encode": (".so.1", ".so"),
    "libnvidia-gpucomp": (),
    "libnvidia-ml": (".so.1", ".so"),
    "libnvidia-nvvm": (".so.4", ".so"),
    "libnvidia-opencl": (".so.1",),
    "libnvidia-opticalflow": (".so.1", ".so"),
    "libnvidia-ptxjitcompiler": (".so.1", ".so"),
}
"""What the driver installs, and the links to each: the name in the library itself, then the one for linking."""
PROGRAMS: Final = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)
_ELF_64 = b"\x7fELF\x02\x01\x01"
"""Enough to be told from a 32-bit library. There is no code in these files."""

_HOOK = '''#!{python}
"""Does what NVIDIA's hook does: makes links in the container that is being created. Its state is on standard input."""
import json, os, pathlib, sys

state = json.load(sys.stdin)
config = json.loads((pathlib.Path(state["bundle"]) / "config.json").read_text())
root = pathlib.Path(state["bundle"], config["root"]["path"])

def link(target, path):
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink() and not place.exists():
        place.symlink_to(target)

what, *rest = sys.argv[1:]
values = rest[1::2]
if what == "create-symlinks":
    for pair in values:
        link(*pair.split("::"))
elif what == "update-ldcache":
    for folder in values:
        for file in sorted((root / folder.lstrip("/")).glob("lib*.so.*.*")):
            name = file.name.partition(".so")[0]
            link(file.name, folder + "/" + name + {sonames}.get(name, ".so.1"))
'''


def install_driver(directory: Path, version: str) -> None:
    """Install driver ``version``, in place of any other. Nothing happens where it is installed already."""
    root = directory / DRIVER_ROOT
    folder = root / FOLDER
    if (folder / f"libcuda.so.{version}").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    cached = {}
    for stem, endings in LIBRARIES.items():
        name = f"{stem}.so.{version}"
        (folder / name).write_bytes(_ELF_64)
        target = name
        for ending in endings:
            (folder / f"{stem}{ending}").symlink_to(target)
            target = f"{stem}{ending}"
        soname = f"{stem}{endings[0]}" if endings else name
        cached[soname] = f"/{FOLDER}/{soname}"
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(loader_cache(cached))
    _programs(root, version)


def _programs(root: Path, version: str) -> None:
    (root / "usr/bin").mkdir(exist_ok=True)
    sonames = {stem: endings[0] for stem, endings in LIBRARIES.items() if endings}
    texts = {f"usr/bin/{name}": f"#!/bin/sh\necho {name} of simulated driver {version}\n" for name in PROGRAMS}
    texts[HOOK] = _HOOK.replace("{python}", sys.executable).replace("{sonames}", repr(sonames))
    for name, text in texts.items():
        (root / name).write_text(text, encoding="ascii")
        os.chmod(root / name, 0o755)  # noqa: PTH101, S103  # programs, for everybody


_MEMORY_DEVICES = 1
_NULL, _GPUS = 3, (5, 7, 8, 9)
"""Minor numbers of ``/dev/null``, and of ``zero``, ``full``, ``random`` and ``urandom``: harmless, and told apart."""


def update_capabilities(directory: Path, state: MachineState) -> None:
    """Make the capabilities of the instances that there are, and remove the others, as the library does with each call.

    Nodes are made by a program of the driver; while that is not there to do it, none is.
    """
    top = directory / "proc/driver/nvidia/capabilities"
    names = [
        f"gpu{device.minor}/gi{gi}/access" if ci is None else f"gpu{device.minor}/gi{gi}/ci{ci}/access"
        for device in state.devices
        for gi, ci in instance_numbers(device)
    ]
    listed = read_capabilities(directory / "proc").minors if names else {}
    wanted = {name: listed[name] for name in names if name in listed}
    for file in sorted(top.glob("gpu*/mig/**/access"), reverse=True):
        if str(file.relative_to(top)).replace("/mig/", "/") not in wanted:
            file.unlink()
            file.parent.rmdir()
    for name, minor in wanted.items():
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1"
        _files(top / name.replace("/", "/mig/", 1).removesuffix("/access"), {"access": text})
    _update_nodes(directory, set() if state.header.nodes_withheld else {f"nvidia-cap{m}" for m in wanted.values()})


def _update_nodes(directory: Path, wanted: Collection[str]) -> None:
    folder = directory / "dev/nvidia-caps"
    for path in folder.glob("nvidia-cap*"):
        if path.name not in wanted:
            path.unlink()
    for name in wanted:
        place = folder / name
        if not place.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (_make_node if (directory / "dev/nvidiactl").is_char_device() else Path.touch)(place)


def make_nodes_real(directory: Path) -> None:
    """Turn the plain files in ``dev`` into nodes of harmless devices. HamiError where that is not allowed."""
    for path in sorted((directory / "dev").rglob("*")):
        if path.is_file():
            path.unlink()
            _make_node(path)


def _make_node(path: Path) -> None:
    number = path.name.removeprefix("nvidia")
    minor = _GPUS[int(number) % len(_GPUS)] if number.isdecimal() else _NULL
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_MEMORY_DEVICES, minor))
    except OSError as error:
        path.touch()
        raise HamiError(f"{path}: no device node can be made: {error.strerror}", hint="run it as root") from error
    path.chmod(0o666)
