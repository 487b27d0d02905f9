"""Device nodes that change: those of MIG instances, which come and go, and real ones in place of plain files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hami_plugin.errors import HamiError
from vendors.nvidia.capabilities import read
from vendors.nvidia.simulation import mig_cut
from vendors.nvidia.simulation.state import State

_MEMORY_DEVICES = 1
_NULL, _GPUS = 3, (5, 7, 8, 9)
"""Minor numbers of ``/dev/null``, and of ``zero``, ``full``, ``random`` and ``urandom``: harmless, and told apart."""


def follow(directory: Path, state: State) -> None:
    """Make the capability nodes of the MIG devices that there are, and remove the others."""
    listed = read(directory / "proc")
    wanted = {
        name
        for device in state.devices
        for gi, ci in mig_cut.numbers(device)
        for name in listed.nodes(device.minor, gi, ci)
    }
    folder = directory / "dev/nvidia-caps"
    for path in folder.glob("nvidia-cap*"):
        if f"{folder.name}/{path.name}" not in wanted:
            path.unlink()
    for name in wanted:
        place = directory / "dev" / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            (_make if (directory / "dev/nvidiactl").is_char_device() else Path.touch)(place)


def make_real(directory: Path) -> None:
    """Turn the plain files in ``dev`` into nodes of harmless devices. HamiError where that is not allowed."""
    for path in sorted((directory / "dev").rglob("*")):
        if path.is_file():
            path.unlink()
            _make(path)


def _make(path: Path) -> None:
    number = path.name.removeprefix("nvidia")
    minor = _GPUS[int(number) % len(_GPUS)] if number.isdecimal() else _NULL
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_MEMORY_DEVICES, minor))
    except OSError as error:
        path.touch()
        raise HamiError(f"{path}: no device node can be made: {error.strerror}", hint="run it as root") from error
    path.chmod(0o666)
