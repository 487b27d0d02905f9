"""Vastai cards, or single dies of them: a container's dies come from as few cards as possible."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Simulator, Vendor
from vendors.vastai.dies import bus
from vendors.vastai.family import families
from vendors.vastai.node import open_driver, rooted
from vendors.vastai.settings import VastaiSettings


def _present(settings: VastaiSettings, paths: HostPaths) -> bool:
    return bool(bus(rooted(settings, paths)))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.vastai.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.vastai.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="vastai",
    title="Vastai cards",
    settings=VastaiSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
    parity=_parity,
)
__all__ = ["VENDOR", "VastaiSettings", "families"]
