"""NVIDIA cards as schedulers know them: resources, annotation keys, rules, and how a decision is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hami_plugin.protocol.register import decode_json
from hami_plugin.sdk import AnnotationKeys, Family, Resources, SchedulingRules
from vendors.nvidia.host import FAMILY
from vendors.nvidia.scheduling import mig
from vendors.nvidia.scheduling.policy import admission, policy

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

ANNOTATIONS = AnnotationKeys(
    register="hami.io/node-nvidia-register",
    handshake="hami.io/node-handshake",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    allocated="hami.io/vgpu-devices-allocated",
    score="hami.io/node-nvidia-score",
)


def scheduled(settings: NvidiaSettings) -> Family:
    """The family without its node side."""
    resources = Resources(
        count=settings.resource_count_name,
        memory=settings.resource_memory_name,
        memory_percent=settings.resource_memory_percentage_name,
        cores=settings.resource_core_name,
        priority=settings.resource_priority_name,
        memory_factor=settings.memory_factor,
    )
    rules = SchedulingRules.registered(
        resources,
        ANNOTATIONS,
        policy(settings),
        decode=decode_json,
        admit=admission(settings),
        patch=mig.patch,
    )
    return Family(device_type=FAMILY, annotations=ANNOTATIONS, resources=resources, rules=rules)
