"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Family, Simulator, Vendor
from vendors.kunlun.family import families
from vendors.kunlun.node import open_driver, present, served
from vendors.kunlun.settings import KunlunSettings


def _served(settings: KunlunSettings) -> tuple[Family, ...]:
    return tuple(served(settings, family) for family in families(settings))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.kunlun.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.kunlun.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="kunlun",
    title="Kunlun XPUs",
    settings=KunlunSettings,
    families=_served,
    open=open_driver,
    present=present,
    simulate=_simulate,
    parity=_parity,
    machine_vendors=("kunlunxin",),
)
