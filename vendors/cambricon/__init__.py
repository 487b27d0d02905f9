"""Cambricon MLUs: shared by memory and cores, the first that fit, with a node lock of their own."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.host.pci import scan
from hami_plugin.model.machine import Machine
from hami_plugin.vendor import Simulator, Vendor
from vendors.cambricon.family import families, parity
from vendors.cambricon.names import PCI_VENDOR
from vendors.cambricon.node import open_driver
from vendors.cambricon.settings import CambriconSettings


def _present(settings: CambriconSettings, paths: HostPaths) -> bool:
    return bool(scan(settings.sysfs_root or paths.sysfs, PCI_VENDOR))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.cambricon.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


VENDOR = Vendor(
    name="cambricon",
    title="Cambricon MLUs",
    settings=CambriconSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
    parity=parity,
)
