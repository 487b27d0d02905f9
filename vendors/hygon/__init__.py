"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from vendors.hygon.driver import DCUS, open_driver
from vendors.hygon.injection import node_side
from vendors.hygon.rules import families
from vendors.hygon.settings import HygonSettings

VENDOR = Vendor(
    name="hygon",
    title="Hygon DCUs",
    noun="DCU",
    settings=HygonSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=DCUS.present,
)
