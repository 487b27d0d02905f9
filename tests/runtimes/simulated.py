"""A simulated machine's files as a container runtime needs them: real device nodes, and a hook that runs here."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

HOOK = Path("driver-root/usr/bin/nvidia-cdi-hook")
HOOK_SCRIPT = Path(__file__).with_name("hook.sh")


def prepare(folder: Path, nodes: Mapping[str, tuple[int, int]]) -> None:
    """Put character devices in place of the plain files below ``dev``. Exactly ``nodes`` must be there."""
    dev = folder / "dev"
    found = {f"/dev/{path.relative_to(dev)}": path for path in dev.rglob("*") if not path.is_dir()}
    assert found.keys() == nodes.keys()
    for name, (major, minor) in nodes.items():
        path = found[name]
        path.unlink()
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(0o666)
    if (folder / HOOK).exists():  # the simulated one is in Python, which the enclosure has not
        (folder / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
