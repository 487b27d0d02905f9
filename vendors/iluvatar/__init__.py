"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.model.machine import Machine
from hami_plugin.vendor import Family, Simulator, Vendor, as_described
from hami_plugin.wire.nodes import DeviceInfo
from vendors.iluvatar.family import families
from vendors.iluvatar.node import chip_of, open_driver, present, served
from vendors.iluvatar.settings import IluvatarSettings


def _served(settings: IluvatarSettings) -> tuple[Family, ...]:
    return tuple(served(settings, family) for family in families(settings))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.iluvatar.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """One chip's GPUs: those whose model ends with its word."""
    named = {device.index for device in machine.devices if chip_of(device.model, [family.word])}
    return tuple(info for info in as_described(family, machine) if info.index in named)


VENDOR = Vendor(
    name="iluvatar",
    title="Iluvatar GPUs",
    settings=IluvatarSettings,
    families=_served,
    open=open_driver,
    present=present,
    simulate=_simulate,
    described=_described,
)
