"""Vastai cards, or single dies of them: a container's dies come from as few cards as possible."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.vastai.dies import DIES
from vendors.vastai.family import families
from vendors.vastai.node import open_driver
from vendors.vastai.settings import VastaiSettings

VENDOR = Vendor(
    name="vastai",
    title="Vastai cards",
    noun="VA",
    settings=VastaiSettings,
    families=families,
    open=open_driver,
    present=DIES.present,
    simulate=deferred("vendors.vastai.simulation.simulate"),
)
__all__ = ["VENDOR", "VastaiSettings", "families"]
