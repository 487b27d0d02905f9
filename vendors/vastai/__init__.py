"""Vastai cards, or single dies of them: a container's dies come from as few cards as possible."""

from __future__ import annotations

from hami_plugin.sdk import Facts, Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.vastai.dies import DIES
from vendors.vastai.family import families
from vendors.vastai.node import open_driver
from vendors.vastai.settings import VastaiSettings

FACTS = Facts(parity=deferred("vendors.vastai.parity.parity"))
VENDOR = Vendor(
    name="vastai",
    title="Vastai cards",
    noun="VA",
    settings=VastaiSettings,
    families=families,
    open=open_driver,
    present=DIES.present,
    simulate=deferred("vendors.vastai.simulation.simulate"),
    facts=FACTS,
)
__all__ = ["VENDOR", "VastaiSettings", "families"]
