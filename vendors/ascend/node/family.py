"""The node's half of a chip's family: how its NPUs are registered and handed over."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Device
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import NodeSide
from vendors.ascend.admission import MODE, SOFT
from vendors.ascend.chips import MODULES, AscendSettings, Chip, shares
from vendors.ascend.node.injection import device_edits, inject, missing_core, shared_edits
from vendors.ascend.policy import NETWORKED, NODE_MODE

_RING = 4
"""NPUs that are in one network, by their numbers, where they are not all in one."""


def node_side(chip: Chip, settings: AscendSettings) -> NodeSide:
    """One chip's."""
    return NodeSide(
        replicas=lambda _device: replicas(chip),
        register=partial(register, settings, chip),
        whole_only=uncut(settings),
        notes={NODE_MODE: str(settings.soft).lower()},
        delivery=delivery(settings, chip),
        device_edits=partial(device_edits, settings),
        shared_edits=partial(shared_edits, settings),
        inject=partial(inject, settings, chip),
        host_problem=partial(missing_core, settings),
    )


def uncut(settings: AscendSettings) -> str:
    """Templates are cut by Ascend's container runtime alone, and CDI leaves it out."""
    if settings.delivery.ways == (Way.ENVVAR,):
        return ""
    return f"only Ascend's container runtime cuts templates; ask by {MODE}: {SOFT} or set deviceListStrategy to envvar"


def replicas(chip: Chip) -> int:
    """As many containers as there are smallest templates on a chip; one where it cannot be cut."""
    return shares(chip.memory_allocatable, (template.memory for template in chip.templates))


def register(settings: AscendSettings, chip: Chip, device: Device, _legacy: bool) -> DeviceInfo:
    """An NPU's entry in the node's register. Its number there is the driver's, by which 910C are paired."""
    custom = {"NetworkID": network(chip, device.index)} if chip.device_type.startswith(NETWORKED) else None
    return DeviceInfo(
        id=device.uuid,
        index=device.index,
        count=replicas(chip),
        devmem=device.memory,
        devcore=100 if settings.soft else chip.ai_cores,
        type=chip.device_type,
        numa=max(0, device.numa or 0),
        health=device.health.offered,
        custom=custom,
    )


def network(chip: Chip, number: int) -> int:
    """The network that HAMi's agent says an NPU is in: one for all 910C, else one for four."""
    return 0 if chip.device_type == MODULES or number < _RING else 1


def delivery(settings: AscendSettings, chip: Chip) -> Delivery:
    """Each chip has a CDI kind of its own, as ``hami.io/npu-910b3``."""
    name = re.sub(r"[^a-z0-9_-]", "-", chip.device_type.removeprefix("Ascend").lower()).strip("-_")
    return replace(settings.delivery, kind=f"{settings.delivery.kind}-{name}")
