"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.model.machine import Machine
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor, as_described, serving
from hami_plugin.sdk.lazy import deferred
from vendors.iluvatar.family import families
from vendors.iluvatar.node import GPUS, chip_of, node_side, open_driver
from vendors.iluvatar.settings import IluvatarSettings


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """One chip's GPUs: those whose model ends with its word."""
    named = {device.index for device in machine.devices if chip_of(device.model, [family.device_type])}
    return tuple(info for info in as_described(family, machine) if info.index in named)


FACTS = Facts(described=_described)
FAMILIES = serving(families, node_side)
VENDOR = Vendor(
    name="iluvatar",
    title="Iluvatar GPUs",
    noun="GPU",
    settings=IluvatarSettings,
    families=FAMILIES,
    open=open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.iluvatar.simulation.simulate"),
    facts=FACTS,
)
