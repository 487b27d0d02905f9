"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.ascend.settings import NPUS, AscendSettings

VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    noun="NPU",
    settings=AscendSettings,
    families=serving(lazy("vendors.ascend.rules:families"), lazy("vendors.ascend.injection:node_side")),
    open=lazy("vendors.ascend.driver:AscendDriver"),
    present=NPUS.present,
    isolated=True,  # libdcmi.so is C that nobody here can look into, asked with our own guess of its structures
)
