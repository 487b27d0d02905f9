"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.vendor import Simulator, Vendor
from vendors.hygon.cards import on_bus
from vendors.hygon.family import families
from vendors.hygon.node import open_driver
from vendors.hygon.settings import HygonSettings


def _present(settings: HygonSettings, paths: HostPaths) -> bool:
    return bool(on_bus(settings.sysfs_root or paths.sysfs))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.hygon.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


VENDOR = Vendor(
    name="hygon",
    title="Hygon DCUs",
    settings=HygonSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
)
