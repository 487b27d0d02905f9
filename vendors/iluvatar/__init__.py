"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from hami_plugin.sdk.lazy import deferred
from vendors.iluvatar.family import families
from vendors.iluvatar.node import GPUS, node_side, open_driver
from vendors.iluvatar.settings import IluvatarSettings

FAMILIES = serving(families, node_side)
VENDOR = Vendor(
    name="iluvatar",
    title="Iluvatar GPUs",
    noun="GPU",
    settings=IluvatarSettings,
    families=FAMILIES,
    open=open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.iluvatar.simulation.simulate"),
)
