"""The ways from the vendor's entry to its node side. Listing vendors must not load what only a node needs."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.vendor import Driver, Simulator
from vendors.ascend.chips import AscendSettings
from vendors.ascend.node.host import HostTrees


def present(settings: AscendSettings, paths: HostPaths) -> bool:
    return HostTrees.of(settings, paths).plugged_in() > 0


def open_driver(settings: AscendSettings, paths: HostPaths) -> Driver:
    from vendors.ascend.node.driver import AscendDriver  # noqa: PLC0415  # as said above

    return AscendDriver(settings, paths)


def simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.ascend.node.simulation import simulate as simulated  # noqa: PLC0415  # needs a compiled library

    return simulated(machine, directory)
