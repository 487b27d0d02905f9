"""Looks for the driver's files in every place of the list, takes the first that fits, and can tell how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vendors.nvidia.driver_files import binaries, libraries
from vendors.nvidia.driver_files.binaries import Binary
from vendors.nvidia.driver_files.layouts import LAYOUTS, Layout
from vendors.nvidia.driver_files.libraries import PURPOSES, Found, Library
from vendors.nvidia.driver_files.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A layout in the tree that it would be in."""

    layout: Layout
    tree: Tree

    def __str__(self) -> str:
        return f"{self.tree.host} ({self.layout.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What the search has found. Without a ``place`` nothing fits. ``tried`` says of each place what was there."""

    version: str = ""
    place: Place | None = None
    libraries: tuple[Library, ...] = ()
    binaries: tuple[Binary, ...] = ()
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


def places(root: Path, view: Path) -> tuple[Place, ...]:
    """Where to look. ``root`` is the driver's root by the host's name for it, ``view`` the same as we see it.

    Below another root than the host's own, the driver container's place makes no sense and is left out.
    """
    whole = Tree(host=root, view=view)
    chosen = [layout for layout in LAYOUTS if root == Path("/") or layout.root == "/"]
    return tuple(Place(layout=layout, tree=_below(whole, layout.root)) for layout in chosen)


def search(where: Sequence[Place], version: str) -> DriverFiles:
    """The files of the driver whose kernel module has ``version``; of any driver, if that is not known."""
    tried: list[str] = []
    for place in where:
        found = libraries.find(place.tree, place.layout, version)
        tried += [f"{place}: {text}" for text in (*found.remarks, _verdict(found, version))]
        if found.complete:
            return DriverFiles(
                version=version or found.versions[-1],
                place=place,
                libraries=found.libraries,
                binaries=binaries.find(place.tree, place.layout),
                tried=tuple(tried),
            )
    return DriverFiles(version=version, tried=tuple(tried))


def _below(tree: Tree, root: str) -> Tree:
    """A root within a tree is a tree of its own: its links stay in it."""
    return tree if root == "/" else replace(tree, host=Path(tree.named(root)), view=tree.seen(tree.real(root) or root))


def _verdict(found: Found, version: str) -> str:
    if found.complete:
        return "found"
    if not found.versions:
        return "no driver libraries"
    others = ", ".join(found.versions)
    if version and version not in found.versions:
        return f"libraries of driver {others}, but the kernel runs {version}; install the same, or load the new module"
    return f"libraries of driver {others}, without {' and '.join(_lacking(found))} for 64 bits"


def _lacking(found: Found) -> Sequence[str]:
    there = {library.stem for library in found.libraries}
    return [stem for stem in libraries.NEEDED if stem not in there]
