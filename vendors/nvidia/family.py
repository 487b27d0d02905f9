"""NVIDIA cards on a node: what schedulers know of them, with their entry in the register and what containers get."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hami_plugin.model.device import Device
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Family, NodeSide
from vendors.nvidia import described
from vendors.nvidia.host import FAMILY
from vendors.nvidia.injection import inject, leftovers, missing_library
from vendors.nvidia.scheduling.family import scheduled
from vendors.nvidia.toolkit import generator

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings


def families(settings: NvidiaSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    node = NodeSide(
        delivery=settings.delivery,
        device_edits=partial(described.device_edits, settings),
        shared_edits=partial(described.shared_edits, settings, described.Reports()),
        slices=partial(described.slices, settings),
        specification=generator(settings),
        explain=partial(described.explain, settings),
        replicas=lambda _device: settings.device_split_count,
        register=partial(register, settings),
        inject=partial(inject, settings),
        host_problem=partial(missing_library, settings),
        leftovers=leftovers,
        numa_hints=settings.enable_numa_topology,
    )
    return (replace(scheduled(settings), node=node),)


def register(settings: NvidiaSettings, device: Device, legacy: bool) -> DeviceInfo:
    """A card's entry in the node's register. ``legacy`` is HAMi 2.7, which prefixes every model's name."""
    return DeviceInfo(
        id=device.uuid,
        index=device.index,
        count=settings.device_split_count,
        devmem=int(device.memory * settings.device_memory_scaling),
        devcore=int(settings.device_core_scaling * 100),
        type=card_type(device.model, legacy=legacy),
        numa=max(0, device.numa or 0),
        mode=device.mode,
        health=device.health.offered,
    )


def card_type(model: str, *, legacy: bool) -> str:
    """HAMi's schedulers find NVIDIA cards by the word NVIDIA in their type."""
    return model if model.startswith(FAMILY) and not legacy else f"{FAMILY}-{model}"
