"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
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
