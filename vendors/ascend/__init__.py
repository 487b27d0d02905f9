"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from vendors.ascend.driver import NPUS, AscendDriver
from vendors.ascend.injection import node_side
from vendors.ascend.rules import families
from vendors.ascend.settings import AscendSettings

VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    noun="NPU",
    settings=AscendSettings,
    families=serving(families, node_side),
    open=AscendDriver,
    present=NPUS.present,
    isolated=True,  # libdcmi.so is C that nobody here can look into, asked with our own guess of its structures
)
