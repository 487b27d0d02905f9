"""Biren GPUs: whole ones, the first that are free."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.vendor import Simulator, Vendor
from vendors.biren.devices import present
from vendors.biren.family import families
from vendors.biren.node import open_driver, rooted
from vendors.biren.settings import BirenSettings


def _present(settings: BirenSettings, paths: HostPaths) -> bool:
    return present(rooted(settings, paths))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.biren.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


VENDOR = Vendor(
    name="biren",
    title="Biren GPUs",
    settings=BirenSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
)
__all__ = ["VENDOR", "BirenSettings", "families"]
