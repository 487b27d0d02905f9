"""Cambricon MLUs: shared by memory and cores, the first that fit, with a node lock of their own."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.cambricon.settings import MLUS, CambriconSettings

VENDOR = Vendor(
    name="cambricon",
    title="Cambricon MLUs",
    noun="MLU",
    settings=CambriconSettings,
    families=serving(lazy("vendors.cambricon.rules:families"), lazy("vendors.cambricon.injection:node_side")),
    open=lazy("vendors.cambricon.driver:open_driver"),
    present=MLUS.present,
)
