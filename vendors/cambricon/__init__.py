"""Cambricon MLUs: shared by memory and cores, the first that fit, with a node lock of their own."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.cambricon.family import families
from vendors.cambricon.names import MLUS
from vendors.cambricon.node import open_driver
from vendors.cambricon.settings import CambriconSettings

VENDOR = Vendor(
    name="cambricon",
    title="Cambricon MLUs",
    noun="MLU",
    settings=CambriconSettings,
    families=families,
    open=open_driver,
    present=MLUS.present,
    simulate=deferred("vendors.cambricon.simulation.simulate"),
)
