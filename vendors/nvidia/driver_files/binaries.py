"""The driver's programs that are of use in a container."""

from __future__ import annotations

from dataclasses import dataclass

from vendors.nvidia.driver_files.layouts import Layout
from vendors.nvidia.driver_files.tree import Tree

NAMES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """``path`` is the file in its tree, ``name`` what it is called in ``folder``."""

    name: str
    folder: str
    path: str


def find(tree: Tree, layout: Layout) -> tuple[Binary, ...]:
    """Each program where it is found first."""
    found: dict[str, Binary] = {}
    for folder in (folder for pattern in layout.binaries for folder in tree.folders(pattern)):
        for name in NAMES:
            if name not in found and tree.is_file(f"{folder}/{name}"):
                found[name] = Binary(name=name, folder=folder, path=tree.real(f"{folder}/{name}") or "")
    return tuple(found[name] for name in NAMES if name in found)
