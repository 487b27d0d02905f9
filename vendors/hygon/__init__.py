"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.deferred import deferred
from hami_plugin.vendor import Vendor
from vendors.hygon.cards import DCUS
from vendors.hygon.family import families
from vendors.hygon.node import open_driver
from vendors.hygon.settings import HygonSettings

VENDOR = Vendor(
    name="hygon",
    title="Hygon DCUs",
    noun="DCU",
    settings=HygonSettings,
    families=families,
    open=open_driver,
    present=DCUS.present,
    simulate=deferred("vendors.hygon.simulation.simulate"),
)
