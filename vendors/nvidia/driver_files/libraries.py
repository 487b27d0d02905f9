"""Which libraries belong to a driver: those of its version, with the links that lead to them.

The driver names each of its libraries after itself, as in ``libcuda.so.570.124.06``, so no list of names is needed to
find them, and a library of another driver that lies beside them is never taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vendors.nvidia.driver_files import ldcache
from vendors.nvidia.driver_files.layouts import Layout
from vendors.nvidia.driver_files.tree import Tree

PURPOSES = (
    ("libcuda", "no program that uses CUDA starts"),
    ("libnvidia-ml", "nvidia-smi and HAMi-core see no card"),
    ("libnvidia-ptxjitcompiler", "kernels that are not built for this card cannot be compiled"),
    ("libnvidia-opencl", "OpenCL sees no card"),
    ("libnvcuvid", "video cannot be decoded"),
    ("libnvidia-encode", "video cannot be encoded"),
)
"""The libraries that are missed when they are not there, and what does not work then."""
NEEDED = ("libcuda", "libnvidia-ml")
"""A place without these has no driver."""

_VERSIONED = re.compile(r"(lib[A-Za-z0-9_+-]+)\.so\.(\d{3,}\.\d+(?:\.\d+)*)")
_ELF_64 = b"\x7fELF\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """``path`` is the file in its tree, ``name`` what it is called in ``folder``, which also has the ``links``."""

    name: str
    folder: str
    path: str
    links: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        return self.name.partition(".so")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The libraries of one version, and the versions of all drivers that have libraries here."""

    libraries: tuple[Library, ...] = ()
    versions: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return set(NEEDED) <= {library.stem for library in self.libraries}


def find(tree: Tree, layout: Layout, version: str) -> Found:
    """The 64-bit libraries of driver ``version`` in a tree. Without a version, of the newest driver that is there."""
    remarks: list[str] = []
    folders = [*_cached_folders(tree, layout, remarks), *(f for p in layout.libraries for f in tree.folders(p))]
    libraries = [library for folder in _once(tree, folders) for library in _libraries(tree, folder)]
    drivers = {_version(library.name) for library in libraries if library.stem in NEEDED}
    versions = sorted(drivers, key=_numbers)
    wanted = version or (versions[-1] if versions else "")
    chosen: dict[str, Library] = {}
    for library in libraries:
        if _version(library.name) == wanted and _is_64_bit(tree, library.path):
            chosen.setdefault(library.name, library)
    return Found(
        libraries=tuple(sorted(chosen.values(), key=lambda library: library.name)),
        versions=tuple(versions),
        remarks=tuple(remarks),
    )


def _cached_folders(tree: Tree, layout: Layout, remarks: list[str]) -> list[str]:
    """The folders in which the host's loader finds the driver."""
    if not layout.cache or not tree.is_file(layout.cache):
        return []
    try:
        entries = list(ldcache.read(tree.seen(tree.real(layout.cache) or layout.cache).read_bytes()))
    except (OSError, ValueError) as error:
        remarks.append(f"{tree.named(layout.cache)} is not readable: {error}")
        return []
    ours = [entry for entry in entries if entry.name.partition(".so")[0] in NEEDED]
    return [entry.path.rpartition("/")[0] or "/" for entry in ours]


def _once(tree: Tree, folders: Iterable[str]) -> Iterator[str]:
    """Each folder once, by the first of its names."""
    seen: set[str] = set()
    for folder in folders:
        real = tree.real(folder)
        if real and real not in seen:
            seen.add(real)
            yield folder


def _libraries(tree: Tree, folder: str) -> Iterator[Library]:
    names = tree.names(folder)
    for name in names:
        path = tree.real(f"{folder}/{name}") if _VERSIONED.fullmatch(name) else None
        if path and tree.is_file(path):
            yield Library(name=name, folder=folder, path=path, links=_links(tree, folder, names, name))


def _links(tree: Tree, folder: str, names: Sequence[str], library: str) -> tuple[str, ...]:
    """The other names in the folder under which programs find a library: ``libcuda.so.1``, ``libcuda.so``."""
    start = f"{library.partition('.so')[0]}.so"
    others = (name for name in names if name == start or name.startswith(f"{start}."))
    real = tree.real(f"{folder}/{library}")
    return tuple(
        sorted((name for name in others if name != library and tree.real(f"{folder}/{name}") == real), reverse=True)
    )


def _version(name: str) -> str:
    match = _VERSIONED.fullmatch(name)
    return match.group(2) if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _is_64_bit(tree: Tree, path: str) -> bool:
    """Some hosts keep 32-bit libraries of the same names in one of the usual folders."""
    try:
        with tree.seen(path).open("rb") as file:
            return file.read(len(_ELF_64)) == _ELF_64
    except OSError:
        return False
