"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.hygon.settings import DCUS, HygonSettings

VENDOR = Vendor(
    name="hygon",
    title="Hygon DCUs",
    noun="DCU",
    settings=HygonSettings,
    families=serving(lazy("vendors.hygon.rules:families"), lazy("vendors.hygon.injection:node_side")),
    open=lazy("vendors.hygon.driver:open_driver"),
    present=DCUS.present,
)
