"""Cambricon MLUs: shared by memory and cores, the first that fit, with a node lock of their own."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from vendors.cambricon.driver import MLUS, open_driver
from vendors.cambricon.injection import node_side
from vendors.cambricon.rules import families
from vendors.cambricon.settings import CambriconSettings

VENDOR = Vendor(
    name="cambricon",
    title="Cambricon MLUs",
    noun="MLU",
    settings=CambriconSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=MLUS.present,
)
