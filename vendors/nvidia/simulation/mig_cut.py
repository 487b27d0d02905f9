"""Cuts cards into the MIG instances that a profile lists, as an administrator has before the daemon starts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from hami_plugin.model.machine import Machine
from vendors.nvidia.simulation.layout import Device
from vendors.nvidia.simulation.state import State

_COMPUTE_PROFILES = (1, 2, 3, 4, 7)
"""Slices by NVML's number of a compute instance's profile."""


def cut(machine: Machine, state: State) -> None:
    """Make the instances once: what has become of them since stays. ValueError names one that has no place."""
    if state.header.serial:
        return
    for source, device in zip(machine.devices, state.devices, strict=True):
        wanted = source.extra.get("mig") or ()
        device.mig_current = device.mig_pending = int(bool(wanted)) or device.mig_current
        for slot, one in enumerate(wanted):
            _instance(state, device, slot, one)


def numbers(device: Device) -> Iterator[tuple[int, int]]:
    """GPU and compute instance of each MIG device that there is."""
    owners = {gi.serial: gi.id for gi in device.gpu_instances if gi.serial}
    return ((owners[ci.owner], ci.id) for ci in device.compute_instances if ci.serial and ci.owner in owners)


def _instance(state: State, device: Device, slot: int, wanted: Mapping[str, Any]) -> None:
    profile, start = str(wanted["profile"]), int(wanted["start"])
    names = [bytes(one.name).decode() for one in device.profiles[: device.profile_count]]
    if profile not in names or start not in list(device.profiles[names.index(profile)].starts):
        raise ValueError(f"{device.name.decode()} has no MIG profile {profile} that starts at {start}")
    row = device.profiles[names.index(profile)]
    gi, ci = device.gpu_instances[slot], device.compute_instances[slot]
    state.header.serial += 2
    gi.serial, gi.profile, gi.start = state.header.serial - 1, names.index(profile), start
    gi.id = _number(device.mig_memory_slices, row.size, start)
    ci.serial, ci.owner, ci.slot, ci.slices = state.header.serial, gi.serial, slot, row.compute_slices
    ci.number = _COMPUTE_PROFILES.index(row.compute_slices)
    ci.uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{device.uuid.decode()}/{slot}')}".encode()


def _number(axis: int, size: int, start: int) -> int:
    """A GPU instance's number: 0 for the whole card, 1 and 2 for its halves from the far end, then quarters."""
    if size >= axis:
        return 0
    if size * 2 == axis:
        return 2 if start == 0 else 1
    return axis // size - 1 + start // size
