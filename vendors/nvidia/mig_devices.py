"""Asks a card which MIG instances it is cut into at present. One that cannot be asked is not there."""

from __future__ import annotations

from vendors.nvidia.binding import NvmlError
from vendors.nvidia.instances import Instance
from vendors.nvidia.library import Handle, Nvml


def look(nvml: Nvml, card: Handle) -> tuple[Instance, ...] | None:
    """The instances of a card; None when it is not in MIG mode. ``NvmlError`` only for what concerns the whole card."""
    try:
        if not nvml.mig_enabled(card):
            return None
        places = nvml.mig_places(card)
    except NvmlError as error:
        if error.unsupported or error.no_permission:
            return None
        raise
    return tuple(found for index in range(places) if (found := _instance(nvml, card, index)))


def _instance(nvml: Nvml, card: Handle, index: int) -> Instance | None:
    """One that goes away while it is looked at is not there."""
    try:
        handle = nvml.mig_device(card, index)
        if handle is None:
            return None
        return Instance(
            uuid=nvml.uuid(handle),
            index=index,
            gi=nvml.gpu_instance(handle),
            ci=nvml.compute_instance(handle),
            profile=nvml.name(handle).rpartition(" MIG ")[2],
        )
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        return None
