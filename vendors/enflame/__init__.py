"""Enflame GCUs: hard partitions (DRS), whole cards, and the shares by percentage of HAMi 2.7."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.enflame.settings import GCUS, EnflameSettings

VENDOR = Vendor(
    name="enflame",
    title="Enflame GCUs",
    noun="GCU",
    settings=EnflameSettings,
    families=serving(lazy("vendors.enflame.rules:families"), lazy("vendors.enflame.injection:node_side")),
    open=lazy("vendors.enflame.driver:open_driver"),
    present=GCUS.present,
)
