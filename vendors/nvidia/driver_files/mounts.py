"""How the driver's files come into a container."""

from __future__ import annotations

from collections.abc import Iterator

from cdi.edits import ContainerEdits, Mount
from vendors.nvidia.driver_files.binaries import Binary
from vendors.nvidia.driver_files.hooks import HookProgram
from vendors.nvidia.driver_files.layouts import Layout
from vendors.nvidia.driver_files.libraries import Library
from vendors.nvidia.driver_files.search import DriverFiles, Place


def mounted(files: DriverFiles, hook: HookProgram) -> ContainerEdits:
    """Every library and program, read-only; then the hooks.

    A runtime cannot make links, so without the hook each library is also mounted under the names that programs load.
    """
    place = files.place
    if place is None:
        return ContainerEdits()
    mounts = [mount for library in files.libraries for mount in _library(place, library, links=not hook.path)]
    mounts += [_mount(place, binary.path, _inside_bin(place.layout, binary), binary.name) for binary in files.binaries]
    folders = tuple(dict.fromkeys(_inside_lib(place.layout, library) for library in files.libraries))
    links = [link for library in files.libraries for link in _plain_link(place.layout, library)]
    return ContainerEdits(mounts=tuple(mounts), hooks=hook.links(links) + hook.loader(folders))


def _library(place: Place, library: Library, *, links: bool) -> Iterator[Mount]:
    folder = _inside_lib(place.layout, library)
    for name in (library.name, *(library.links if links else ())):
        yield _mount(place, library.path, folder, name)


def _mount(place: Place, path: str, folder: str, name: str) -> Mount:
    return Mount(host_path=place.tree.named(path), container_path=f"{folder}/{name}")


def _plain_link(layout: Layout, library: Library) -> Iterator[tuple[str, str]]:
    """The link without a version, which the loader's own tool does not make; some programs load by that name."""
    plain = f"{library.stem}.so"
    versioned = next((link for link in library.links if link != plain), library.name)
    if plain in library.links:
        yield versioned, f"{_inside_lib(layout, library)}/{plain}"


def _inside_lib(layout: Layout, library: Library) -> str:
    return f"{layout.inside}/lib64" if layout.inside else library.folder


def _inside_bin(layout: Layout, binary: Binary) -> str:
    return f"{layout.inside}/bin" if layout.inside else binary.folder
