"""The files that NVIDIA's driver installs on a machine: libraries, programs, the loader's cache, and a CDI hook."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from vendors.nvidia.simulation.loader_cache import loader_cache

ROOT: Final = "driver-root"
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


def write(directory: Path, version: str) -> None:
    """Install driver ``version``, in place of any other. Nothing happens where it is installed already."""
    root = directory / ROOT
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
