"""The files of NVIDIA's driver that a container needs: where a host keeps them, which they are, how they are mounted.

Everything here reads the file system of the host, which this process sees at another place, and nothing here runs a
program or asks the driver. Libraries are found by the cache of the host's dynamic loader. A cache of glibc since 2.2 is
a header of 48 bytes (magic, number of entries, length of the names), entries of 24 bytes (flags, and where the name and
the path begin, counted from the header), and the names. Older systems put a list in a format of their own in front.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from cdi.spec import ContainerEdits, Hook, Mount

MAX_LINKS = 40
"""As many as the kernel follows before it calls them a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootedTree:
    """``host`` is a root directory by the host's name for it, ``view`` the same one as this process reaches it.

    Paths in the tree are absolute, ``host`` left out: links in it lead where they would lead after a chroot.
    """

    host: Path
    view: Path

    def named(self, path: str) -> str:
        """The host's name of a path in the tree."""
        return str(self.host / path.lstrip("/"))

    def seen(self, path: str) -> Path:
        """The same path as this process reaches it. Links in it are not taken care of; see ``real``."""
        return self.view / path.lstrip("/")

    def real(self, path: str) -> str | None:
        """Where a path leads when every link is followed. None when there is nothing, or only a loop."""
        done, rest, links = "", _parts(path), 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            try:
                target = str(self.seen(f"{done}/{part}").readlink())
            except OSError:  # no link: a file, a directory, or nothing
                done = f"{done}/{part}"
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            done = "" if target.startswith("/") else done
            rest = [*_parts(target), *rest]
        return done or "/" if os.path.lexists(self.seen(done)) else None

    def names(self, folder: str) -> Sequence[str]:
        """What is in a folder, sorted; nothing when there is none."""
        real = self.real(folder)
        try:
            return sorted(entry.name for entry in self.seen(real).iterdir()) if real else ()
        except OSError:
            return ()

    def folders(self, pattern: str) -> Iterator[str]:
        """The folders that fit a pattern of the shell's kind, by the path that fits."""
        found = [""]
        for part in _parts(pattern):
            found = [f"{above}/{name}" for above in found for name in self._fitting(above or "/", part)]
        return (path for path in found if (real := self.real(path)) and self.seen(real).is_dir())

    def is_file(self, path: str) -> bool:
        real = self.real(path)
        return real is not None and self.seen(real).is_file()

    def _fitting(self, folder: str, pattern: str) -> Sequence[str]:
        if not any(sign in pattern for sign in "*?["):
            return [pattern]
        return [name for name in self.names(folder) if fnmatch(name, pattern)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


CACHE_MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("<20sII20x")
ENTRY = struct.Struct("<iIIIQ")

LIBC6 = 0x0003
MACHINES_64 = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500}
"""The flags of 64-bit libraries, on the machines that the driver exists for."""
_MACHINE_BITS = 0xFF00


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLibrary:
    """A library by the name that programs ask for, and its file."""

    name: str
    path: str


def loader_entries(content: bytes) -> Iterator[CachedLibrary]:
    """The 64-bit libraries in a cache, in its order. ValueError says what is wrong with the file."""
    start = content.find(CACHE_MAGIC)
    if start < 0:
        raise ValueError("it has no list in glibc's format")
    if len(content) < start + HEADER.size:
        raise ValueError("its header is cut off")
    _magic, count, _length = HEADER.unpack_from(content, start)
    first = start + HEADER.size
    if len(content) < first + count * ENTRY.size:
        raise ValueError(f"it is cut off: {len(content)} bytes do not hold its {count} entries")
    for number in range(count):
        flags, name, path, _version, _hardware = ENTRY.unpack_from(content, first + number * ENTRY.size)
        if flags & _MACHINE_BITS in MACHINES_64.values() and flags & LIBC6 == LIBC6:
            yield CachedLibrary(name=_text(content, start + name), path=_text(content, start + path))


def _text(content: bytes, start: int) -> str:
    end = content.find(b"\0", start)
    if not 0 <= start < end:
        raise ValueError(f"a name begins at byte {start}, where none ends")
    return content[start:end].decode(errors="replace")


_USUAL_LIBRARIES = (
    *("/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/lib/*-linux-gnu/nvidia/current"),
    *("/lib64", "/lib/*-linux-gnu", "/usr/lib", "/lib"),
)
_USUAL_BINARIES = ("/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin")
_CACHE = "/etc/ld.so.cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """One kind of host. Folders are patterns, below ``root``.

    ``cache`` is what the host's dynamic loader goes by, where it knows of the driver. ``inside`` is the folder in a
    container below which the files are mounted; without it they are where they are below ``root``, since a
    container's own loader and shell look there too.
    """

    name: str
    libraries: tuple[str, ...]
    binaries: tuple[str, ...]
    root: str = "/"
    cache: str = ""
    inside: str = ""


# Images made for GPUs have this folder's bin and lib64 in PATH and in LD_LIBRARY_PATH.
_INSIDE = "/usr/local/nvidia"

LAYOUTS = (
    HostLayout(name="usual folders", libraries=_USUAL_LIBRARIES, binaries=_USUAL_BINARIES, cache=_CACHE),
    HostLayout(
        name="driver container",
        root="/run/nvidia/driver",
        libraries=_USUAL_LIBRARIES,
        binaries=_USUAL_BINARIES,
        cache=_CACHE,
    ),
    HostLayout(
        name="GKE",
        libraries=("/home/kubernetes/bin/nvidia/lib64",),
        binaries=("/home/kubernetes/bin/nvidia/bin",),
        inside=_INSIDE,
    ),
    HostLayout(
        name="Talos",
        libraries=("/usr/local/glibc/usr/lib", "/usr/local/glibc/lib64", "/usr/local/glibc/lib", "/usr/local/lib"),
        binaries=("/usr/local/bin",),
        cache="/usr/local/glibc/etc/ld.so.cache",
        inside=_INSIDE,
    ),
    HostLayout(
        name="NixOS",
        libraries=("/run/opengl-driver/lib",),
        binaries=("/run/opengl-driver/bin", "/run/current-system/sw/bin"),
        inside=_INSIDE,
    ),
    HostLayout(
        name="Bottlerocket",
        libraries=("/usr/lib/nvidia/tesla", "/*-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla"),
        binaries=(
            "/usr/libexec/nvidia/tesla/bin",
            "/*-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
        ),
        inside=_INSIDE,
    ),
)
"""In the order in which they are tried."""


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
class DriverLibrary:
    """``path`` is the file in its tree, ``name`` what it is called in ``folder``, which also has the ``links``."""

    name: str
    folder: str
    path: str
    links: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        return self.name.partition(".so")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLibraries:
    """The libraries of one version, and the versions of all drivers that have libraries here."""

    libraries: tuple[DriverLibrary, ...] = ()
    versions: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return set(NEEDED) <= {library.stem for library in self.libraries}


def find_libraries(tree: RootedTree, layout: HostLayout, version: str) -> FoundLibraries:
    """The 64-bit libraries of driver ``version`` in a tree. Without a version, of the newest driver that is there."""
    remarks: list[str] = []
    folders = [*_cached_folders(tree, layout, remarks), *(f for p in layout.libraries for f in tree.folders(p))]
    libraries = [library for folder in _once(tree, folders) for library in _libraries(tree, folder)]
    drivers = {_version(library.name) for library in libraries if library.stem in NEEDED}
    versions = sorted(drivers, key=_numbers)
    wanted = version or (versions[-1] if versions else "")
    chosen: dict[str, DriverLibrary] = {}
    for library in libraries:
        if _version(library.name) == wanted and _is_64_bit(tree, library.path):
            chosen.setdefault(library.name, library)
    return FoundLibraries(
        libraries=tuple(sorted(chosen.values(), key=lambda library: library.name)),
        versions=tuple(versions),
        remarks=tuple(remarks),
    )


def _cached_folders(tree: RootedTree, layout: HostLayout, remarks: list[str]) -> list[str]:
    """The folders in which the host's loader finds the driver."""
    if not layout.cache or not tree.is_file(layout.cache):
        return []
    try:
        entries = list(loader_entries(tree.seen(tree.real(layout.cache) or layout.cache).read_bytes()))
    except (OSError, ValueError) as error:
        remarks.append(f"{tree.named(layout.cache)} is not readable: {error}")
        return []
    ours = [entry for entry in entries if entry.name.partition(".so")[0] in NEEDED]
    return [entry.path.rpartition("/")[0] or "/" for entry in ours]


def _once(tree: RootedTree, folders: Iterable[str]) -> Iterator[str]:
    """Each folder once, by the first of its names."""
    seen: set[str] = set()
    for folder in folders:
        real = tree.real(folder)
        if real and real not in seen:
            seen.add(real)
            yield folder


def _libraries(tree: RootedTree, folder: str) -> Iterator[DriverLibrary]:
    names = tree.names(folder)
    for name in names:
        path = tree.real(f"{folder}/{name}") if _VERSIONED.fullmatch(name) else None
        if path and tree.is_file(path):
            yield DriverLibrary(name=name, folder=folder, path=path, links=_links(tree, folder, names, name))


def _links(tree: RootedTree, folder: str, names: Sequence[str], library: str) -> tuple[str, ...]:
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


def _is_64_bit(tree: RootedTree, path: str) -> bool:
    """Some hosts keep 32-bit libraries of the same names in one of the usual folders."""
    try:
        with tree.seen(path).open("rb") as file:
            return file.read(len(_ELF_64)) == _ELF_64
    except OSError:
        return False


PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """``path`` is the file in its tree, ``name`` what it is called in ``folder``."""

    name: str
    folder: str
    path: str


def find_programs(tree: RootedTree, layout: HostLayout) -> tuple[Program, ...]:
    """Each program where it is found first."""
    found: dict[str, Program] = {}
    for folder in (folder for pattern in layout.binaries for folder in tree.folders(pattern)):
        for name in PROGRAMS:
            if name not in found and tree.is_file(f"{folder}/{name}"):
                found[name] = Program(name=name, folder=folder, path=tree.real(f"{folder}/{name}") or "")
    return tuple(found[name] for name in PROGRAMS if name in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPlace:
    """A layout in the tree that it would be in."""

    layout: HostLayout
    tree: RootedTree

    def __str__(self) -> str:
        return f"{self.tree.host} ({self.layout.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What the search has found. Without a ``place`` nothing fits. ``tried`` says of each place what was there."""

    version: str = ""
    place: DriverPlace | None = None
    libraries: tuple[DriverLibrary, ...] = ()
    binaries: tuple[Program, ...] = ()
    tried: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Libraries that this driver usually has, and what a container cannot do without each."""
        there = {library.stem for library in self.libraries}
        return tuple(f"no {stem}.so.{self.version}: {loss}" for stem, loss in PURPOSES if stem not in there)

    def report(self) -> tuple[str, ...]:
        """In words, for people: one line for each fact."""
        lines = [f"looked in {text}" for text in self.tried]
        if self.place is None:
            return (*lines, "no driver files found: containers must bring their own, or they see no card")
        folders = dict.fromkeys(self.place.tree.named(library.folder) for library in self.libraries)
        programs = ", ".join(binary.name for binary in self.binaries) or "none"
        return (
            *lines,
            f"driver {self.version} at {self.place}",
            f"{len(self.libraries)} libraries in {', '.join(folders)}",
            f"programs: {programs}",
            *self.missing,
        )


def driver_places(root: Path, view: Path) -> tuple[DriverPlace, ...]:
    """Where to look. ``root`` is the driver's root by the host's name for it, ``view`` the same as we see it.

    Below another root than the host's own, the driver container's place makes no sense and is left out.
    """
    whole = RootedTree(host=root, view=view)
    chosen = [layout for layout in LAYOUTS if root == Path("/") or layout.root == "/"]
    return tuple(DriverPlace(layout=layout, tree=_below(whole, layout.root)) for layout in chosen)


def find_driver_files(where: Sequence[DriverPlace], version: str) -> DriverFiles:
    """The files of the driver whose kernel module has ``version``; of any driver, if that is not known."""
    tried: list[str] = []
    for place in where:
        found = find_libraries(place.tree, place.layout, version)
        tried += [f"{place}: {text}" for text in (*found.remarks, _verdict(found, version))]
        if found.complete:
            return DriverFiles(
                version=version or found.versions[-1],
                place=place,
                libraries=found.libraries,
                binaries=find_programs(place.tree, place.layout),
                tried=tuple(tried),
            )
    return DriverFiles(version=version, tried=tuple(tried))


def _below(tree: RootedTree, root: str) -> RootedTree:
    """A root within a tree is a tree of its own: its links stay in it."""
    return tree if root == "/" else replace(tree, host=Path(tree.named(root)), view=tree.seen(tree.real(root) or root))


def _verdict(found: FoundLibraries, version: str) -> str:
    if found.complete:
        return "found"
    if not found.versions:
        return "no driver libraries"
    others = ", ".join(found.versions)
    if version and version not in found.versions:
        return f"libraries of driver {others}, but the kernel runs {version}; install the same, or load the new module"
    return f"libraries of driver {others}, without {' and '.join(_lacking(found))} for 64 bits"


def _lacking(found: FoundLibraries) -> Sequence[str]:
    there = {library.stem for library in found.libraries}
    return [stem for stem in NEEDED if stem not in there]


HOOK_PLACES = (
    *("/usr/bin/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
    *("/usr/bin/nvidia-ctk", "/usr/local/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk"),
)
"""Where NVIDIA's packages and its operator put the program, the one that only has hooks first."""
_WHEN = "createContainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProgram:
    """The program by the host's path of it. Without a path there is none; ``remark`` says how that was found out."""

    path: str = ""
    remark: str

    def links(self, links: Sequence[tuple[str, str]]) -> tuple[Hook, ...]:
        """Make links in the container: pairs of what a link contains, and where it is."""
        arguments = (part for target, link in links for part in ("--link", f"{target}::{link}"))
        return self._hook("create-symlinks", *arguments) if links else ()

    def loader(self, folders: Sequence[str]) -> tuple[Hook, ...]:
        """Tell the container's loader of folders, which also gives each library the links that it needs."""
        return self._hook("update-ldcache", *(part for folder in folders for part in ("--folder", folder)))

    def _hook(self, *arguments: str) -> tuple[Hook, ...]:
        if not self.path:
            return ()
        program = Path(self.path).name
        command = (program, "hook") if program.startswith("nvidia-ctk") else (program,)
        return (Hook(name=_WHEN, path=self.path, args=(*command, *arguments)),)


def find_hook(configured: str, host: RootedTree | None) -> HookProgram:
    """The configured program, else the first of the usual places. ``host`` is the host's whole tree, if we see it."""
    if configured and host is None:
        return HookProgram(path=configured, remark=f"hook {configured}, as configured; this process cannot look there")
    if host is None:
        return HookProgram(remark="no hook: this process does not see the host's programs; set nvidiaCdiHookPath")
    for place in (configured,) if configured else HOOK_PLACES:
        if host.is_file(place):
            return HookProgram(path=host.named(place), remark=f"hook {host.named(place)}")
    if configured:
        return HookProgram(remark=f"no hook: nvidiaCdiHookPath is {configured}, and the host has no such file")
    return HookProgram(remark="no hook: neither nvidia-cdi-hook nor nvidia-ctk is in the usual places")


def driver_mounts(files: DriverFiles, hook: HookProgram) -> ContainerEdits:
    """Every library and program, read-only; then the hooks.

    A runtime cannot make links, so without the hook each library is also mounted under the names that programs load.
    """
    place = files.place
    if place is None:
        return ContainerEdits()
    mounts = [mount for library in files.libraries for mount in _library_mounts(place, library, links=not hook.path)]
    mounts += [_mount(place, binary.path, _inside_bin(place.layout, binary), binary.name) for binary in files.binaries]
    folders = tuple(dict.fromkeys(_inside_lib(place.layout, library) for library in files.libraries))
    links = [link for library in files.libraries for link in _plain_link(place.layout, library)]
    return ContainerEdits(mounts=tuple(mounts), hooks=hook.links(links) + hook.loader(folders))


def _library_mounts(place: DriverPlace, library: DriverLibrary, *, links: bool) -> Iterator[Mount]:
    folder = _inside_lib(place.layout, library)
    for name in (library.name, *(library.links if links else ())):
        yield _mount(place, library.path, folder, name)


def _mount(place: DriverPlace, path: str, folder: str, name: str) -> Mount:
    return Mount(host_path=place.tree.named(path), container_path=f"{folder}/{name}")


def _plain_link(layout: HostLayout, library: DriverLibrary) -> Iterator[tuple[str, str]]:
    """The link without a version, which the loader's own tool does not make; some programs load by that name."""
    plain = f"{library.stem}.so"
    versioned = next((link for link in library.links if link != plain), library.name)
    if plain in library.links:
        yield versioned, f"{_inside_lib(layout, library)}/{plain}"


def _inside_lib(layout: HostLayout, library: DriverLibrary) -> str:
    return f"{layout.inside}/lib64" if layout.inside else library.folder


def _inside_bin(layout: HostLayout, binary: Program) -> str:
    return f"{layout.inside}/bin" if layout.inside else binary.folder
