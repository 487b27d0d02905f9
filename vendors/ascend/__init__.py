"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor, as_described
from hami_plugin.sdk.lazy import deferred
from vendors.ascend.chips import CHIPS, AscendSettings
from vendors.ascend.family import families
from vendors.ascend.node.host import NPUS


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """One family's chips: those that the driver calls by its name."""
    name, memory = CHIPS[family.device_type][:2] if family.device_type in CHIPS else (family.device_type, 0)
    cores = {device.index: int(device.extra.get("aicore", 0)) for device in machine.devices if device.model == name}
    return tuple(
        replace(info, devmem=min(info.devmem, memory or info.devmem), devcore=cores[info.index])
        for info in as_described(family, machine)
        if info.index in cores
    )


FACTS = Facts(parity=deferred("vendors.ascend.parity.parity"), described=_described)
VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    noun="NPU",
    settings=AscendSettings,
    families=families,
    open=deferred("vendors.ascend.node.driver.AscendDriver"),
    present=NPUS.present,
    isolated=True,  # libdcmi.so is C that nobody here can look into, asked with our own guess of its structures
    simulate=deferred("vendors.ascend.node.simulation.simulate"),
    facts=FACTS,
)
