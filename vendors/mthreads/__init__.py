"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Family, Simulator, Vendor, as_described
from hami_plugin.wire.nodes import DeviceInfo
from vendors.mthreads.family import CARD_CORES, families
from vendors.mthreads.node import open_driver, present, served
from vendors.mthreads.settings import MthreadsSettings


def _served(settings: MthreadsSettings) -> tuple[Family, ...]:
    return tuple(served(settings, family) for family in families(settings))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.mthreads.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.mthreads.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    return tuple(replace(one, devcore=CARD_CORES) for one in as_described(family, machine))


VENDOR = Vendor(
    name="mthreads",
    title="Moore Threads GPUs",
    settings=MthreadsSettings,
    families=_served,
    open=open_driver,
    present=present,
    simulate=_simulate,
    described=_described,
    parity=_parity,
)
