"""NVIDIA cards as HAMi's schedulers know them: resources, annotation keys, and the entry in the register."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hami_plugin.model.device import Device
from hami_plugin.policy.registered import annotated
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames
from hami_plugin.wire.nodes import DeviceInfo, decode_json
from vendors.nvidia import described, mig
from vendors.nvidia.host import FAMILY
from vendors.nvidia.injection import inject, missing_library
from vendors.nvidia.policy import admission, policy
from vendors.nvidia.toolkit import generator

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

ANNOTATIONS = AnnotationKeys(
    register="hami.io/node-nvidia-register",
    handshake="hami.io/node-handshake",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    allocated="hami.io/vgpu-devices-allocated",
    score="hami.io/node-nvidia-score",
)


def families(settings: NvidiaSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    family = Family(
        word=FAMILY,
        resources=ResourceNames(
            count=settings.resource_count_name,
            memory=settings.resource_memory_name,
            memory_percent=settings.resource_memory_percentage_name,
            cores=settings.resource_core_name,
            priority=settings.resource_priority_name,
        ),
        annotations=ANNOTATIONS,
        policy=policy(settings),
        admit=admission(settings),
        node_devices=annotated(ANNOTATIONS.register, decode_json),
        patch=mig.patch,
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
        numa_hints=settings.enable_numa_topology,
        memory_factor=settings.memory_factor,
    )
    return (family,)


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
