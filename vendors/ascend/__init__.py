"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.ascend.chips import AscendSettings
from vendors.ascend.family import families
from vendors.ascend.node.host import NPUS

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
)
