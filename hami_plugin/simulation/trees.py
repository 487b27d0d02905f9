"""Fake ``/sys``, ``/proc`` and ``/dev`` trees of a simulated machine, written from its profile."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice

_DONE = ".written"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_SAME_BOARD, _SAME_SWITCH = ("INT",), ("INT", "PIX")
_SAME_PORT, _SAME_ROOT = (*_SAME_SWITCH, "PXB"), (*_SAME_SWITCH, "PXB", "PHB")


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link to another path of the tree, in place of a file's text."""

    to: str


Files = Mapping[str, str | Symlink]
"""Files of a tree by their path, each with its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory with a machine's file trees. Other processes see each change at once."""

    root: Path

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def settings(self) -> dict[str, str]:
        """The settings that point a vendor's driver here."""
        return {"sysfsRoot": str(self.sysfs), "procRoot": str(self.proc), "devRoot": str(self.dev)}

    @property
    def written(self) -> bool:
        """Whether an earlier process has written everything; faults since then remain."""
        return (self.root / _DONE).exists()

    def done(self) -> None:
        """Mark that everything is written."""
        self.write(_DONE, "")

    def write(self, path: str, text: str) -> None:
        """Write a file. An existing one is replaced atomically, because a reader may have it open."""
        target = self.root / path
        part = target.with_name(f".{target.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
        except FileNotFoundError:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
        part.replace(target)

    def write_all(self, folder: str, files: Mapping[str, object]) -> None:
        """Write attributes of one directory, each a line as the kernel writes it."""
        self.put(attributes(folder, files))

    def link(self, path: str, target: str) -> None:
        """Create a relative symbolic link to another path of the tree."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, place.parent))

    def put(self, files: Files) -> None:
        """Write all files and links."""
        for path, content in files.items():
            if isinstance(content, Symlink):
                self.link(path, content.to)
            else:
                self.write(path, content)

    def take(self, files: Iterable[str]) -> None:
        """Remove files, and directories that become empty."""
        for path in files:
            self.remove(path)
            for folder in Path(path).parents[:-2]:
                with suppress(OSError):
                    (self.root / folder).rmdir()

    def remove(self, *paths: str) -> None:
        """Remove files, links or whole directories, if they exist."""
        for path in paths:
            place = self.root / path
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)


def write_pci(tree: Tree, machine: Machine, *, vendor: str, device: str, driver: str, kind: str = "0x120000") -> None:
    """All devices on the bus, at distances as in the profile, bound to ``driver``."""
    for one in machine.devices:
        plug(tree, machine, one, vendor=vendor, device=device, driver=driver, kind=kind)
    write_numa(tree, machine.numa_nodes)


def attributes(folder: str, facts: Mapping[str, object]) -> Files:
    """Attributes as files of one directory, each a line as the kernel writes it."""
    return {f"{folder}/{name}": f"{value}\n" for name, value in facts.items()}


def plug(
    tree: Tree,
    machine: Machine,
    one: MachineDevice,
    *,
    vendor: str,
    device: str,
    driver: str,
    kind: str = "0x120000",
) -> None:
    """One device on the bus. Ids are as in sysfs, ``0x1d0f``; without a driver it is unbound.

    ValueError names an invalid address.
    """
    if not _ADDRESS.fullmatch(one.pci):
        raise ValueError(f"{one.pci!r} is not a PCI address such as 0000:1b:00.0")
    folder = on_bus(machine, one)
    facts = {"vendor": vendor, "device": device, "class": kind, "numa_node": one.numa}
    tree.write_all(folder, {**facts, "local_cpulist": machine.numa_nodes.get(one.numa, "")})
    tree.link(f"sys/bus/pci/devices/{one.pci}", folder)
    tree.remove(f"{folder}/driver")
    if driver:
        tree.write_all(f"sys/bus/pci/drivers/{driver}", {"uevent": ""})
        tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        tree.link(f"sys/bus/pci/drivers/{driver}/{one.pci}", folder)


def unplug(tree: Tree, one: MachineDevice, driver: str) -> None:
    """Remove one device from the bus."""
    link = tree.root / "sys/bus/pci/devices" / one.pci
    if link.is_symlink():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    tree.remove(f"sys/bus/pci/devices/{one.pci}", f"sys/bus/pci/drivers/{driver}/{one.pci}")


def on_bus(machine: Machine, one: MachineDevice) -> str:
    """A device's directory in sysfs."""
    return f"sys/devices/{place(machine, one.index)}/{one.pci}"


def place(machine: Machine, index: int) -> str:
    """The bridges above a device, from the root complex down. Each is named after the first device behind it."""
    root, port, switch, board = (
        next(i for i, level in enumerate(machine.levels[index]) if level in ("X", *near))
        for near in (_SAME_ROOT, _SAME_PORT, _SAME_SWITCH, _SAME_BOARD)
    )
    chain = [f"pci{root:04x}:00"]
    if port != index or _any(machine, index, _SAME_PORT):
        chain += [f"{root:04x}:{port + 1:02x}:00.0", f"{root:04x}:{switch + 0x41:02x}:01.0"]
    if len(chain) > 1 or _any(machine, index, _SAME_BOARD):
        chain += [f"{root:04x}:{board + 0x81:02x}:02.0"]
    return "/".join(chain)


def _any(machine: Machine, index: int, near: tuple[str, ...]) -> bool:
    return any(level in near for level in machine.levels[index])


def write_numa(tree: Tree, nodes: Mapping[int, str]) -> None:
    """The host's NUMA nodes and their processors."""
    for number, cpus in nodes.items():
        tree.write_all(f"sys/devices/system/node/node{number}", {"cpulist": cpus})


def write_nodes(tree: Tree, names: Iterable[str]) -> None:
    """Regular files in place of device nodes."""
    for name in names:
        tree.write(f"dev/{name}", "")
