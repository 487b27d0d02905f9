"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Driver, Simulator, Vendor
from vendors.ascend.chips import AscendSettings
from vendors.ascend.family import families


def _open(settings: AscendSettings, paths: HostPaths) -> Driver:
    from vendors.ascend.node.driver import AscendDriver  # noqa: PLC0415  # only a node needs it

    return AscendDriver(settings, paths)


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.ascend.node.simulation import simulate  # noqa: PLC0415  # needs a compiled library, and only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.ascend.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    settings=AscendSettings,
    families=families,
    open=_open,
    simulate=_simulate,
    parity=_parity,
    machine_vendors=("ascend",),
)
