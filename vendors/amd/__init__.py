"""AMD Instinct GPUs: shared by memory and compute units, and found by sysfs alone."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.parity import Json, Parity
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.requests import Demand
from hami_plugin.sdk import Facts, Family, Vendor, as_described
from hami_plugin.sdk.lazy import deferred
from vendors.amd.devices import GPUS
from vendors.amd.family import families
from vendors.amd.node import open_driver
from vendors.amd.settings import AmdSettings


def _as_hami(demand: Demand, unset_percent: int) -> Json:
    """HAMi never writes a percentage: no memory means all of it."""
    return {**Parity().request(demand, unset_percent), "mempercentagereq": unset_percent}


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """With compute units for cores."""
    units = {device.index: int(device.extra.get("compute_units", 0)) for device in machine.devices}
    return tuple(replace(info, devcore=units[info.index]) for info in as_described(family, machine))


FACTS = Facts(parity=lambda: Parity(request=_as_hami), described=_described)
VENDOR = Vendor(
    name="amd",
    title="AMD GPUs",
    noun="GPU",
    settings=AmdSettings,
    families=families,
    open=open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.amd.simulation.simulate"),
    facts=FACTS,
)
