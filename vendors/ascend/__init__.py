"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Family, Vendor, as_described
from hami_plugin.wire.nodes import DeviceInfo
from vendors.ascend.chips import CHIPS, AscendSettings
from vendors.ascend.family import families
from vendors.ascend.node.opening import open_driver, present, simulate


def _parity() -> Parity:
    from vendors.ascend.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """One family's chips: those that the driver calls by its name."""
    name, memory = CHIPS[family.word][:2] if family.word in CHIPS else (family.word, 0)
    cores = {device.index: int(device.extra.get("aicore", 0)) for device in machine.devices if device.model == name}
    return tuple(
        replace(info, devmem=min(info.devmem, memory or info.devmem), devcore=cores[info.index])
        for info in as_described(family, machine)
        if info.index in cores
    )


VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    settings=AscendSettings,
    open=open_driver,
    present=present,
    families=families,
    simulate=simulate,
    parity=_parity,
    described=_described,
)
