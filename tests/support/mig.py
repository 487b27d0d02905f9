"""An administrator at work on a simulated node's MIG instances: NVML in a process of its own, as nvidia-smi is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import ctypes, sys
import pynvml as n

library, command, card, *rest = sys.argv[1:]
n.nvmlLib = ctypes.CDLL(library)
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(int(card))


def of(name):
    """The profile and the compute profile of this name's GPU instance."""
    for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = n.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
        except n.NVMLError:
            continue
        if info.name == "MIG " + name:
            return info, number
    raise SystemExit(name + " is no profile of this card")


def uuids():
    found = {}
    for slot in range(n.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = n.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except n.NVMLError_NotFound:
            continue
        ids = n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetComputeInstanceId(device)
        found[n.nvmlDeviceGetUUID(device)] = ids
    return found


if command == "mode":
    print(n.nvmlDeviceSetMigMode(handle, int(rest[0])))
elif command == "list":
    for uuid, (gi, ci) in uuids().items():
        print(uuid, gi, ci)
elif command == "create":
    info, number = of(rest[0])
    before = uuids()
    if len(rest) > 1:
        place = n.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = (int(part) for part in rest[1].split("+"))
        made = n.nvmlDeviceCreateGpuInstanceWithPlacement(handle, info.id, ctypes.byref(place))
    else:
        made = n.nvmlDeviceCreateGpuInstance(handle, info.id)
    compute = {7: 0, 8: 1, 9: 0}.get(number, number)
    n.nvmlGpuInstanceCreateComputeInstance(made, compute)
    print(*(set(uuids()) - set(before)))
elif command == "destroy":
    gi, ci = uuids()[rest[0]]
    instance = n.nvmlDeviceGetGpuInstanceById(handle, gi)
    n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, ci))
    n.nvmlGpuInstanceDestroy(instance)
'''


class MigAdministrator:
    """``library`` is the simulated machine's. Every call runs to its end in another process."""

    def __init__(self, library: str | Path) -> None:
        self._library = str(library)

    def switch(self, card: int, *, on: bool) -> None:
        """Switch the mode of a card that is idle."""
        assert self._run("mode", card, str(int(on))) == "0"

    def create(self, card: int, profile: str, place: str = "") -> str:
        """Make a GPU instance with one compute instance, at ``start+size`` or where the driver likes; its UUID."""
        return self._run("create", card, profile, *filter(None, [place]))

    def destroy(self, card: int, uuid: str) -> None:
        """Unmake both."""
        self._run("destroy", card, uuid)

    def instances(self, card: int) -> dict[str, tuple[int, int]]:
        """UUIDs, with the numbers of the GPU and the compute instance."""
        rows = (line.split() for line in self._run("list", card).splitlines())
        return {uuid: (int(gi), int(ci)) for uuid, gi, ci in rows}

    def _run(self, command: str, card: int, *arguments: str) -> str:
        line = [sys.executable, "-c", PROGRAM, self._library, command, str(card), *arguments]
        done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()
