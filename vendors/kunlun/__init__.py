"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from hami_plugin.sdk.lazy import deferred
from vendors.kunlun.family import families
from vendors.kunlun.node import XPUS, node_side, open_driver
from vendors.kunlun.settings import KunlunSettings

FAMILIES = serving(families, node_side)
VENDOR = Vendor(
    name="kunlun",
    title="Kunlun XPUs",
    noun="XPU",
    settings=KunlunSettings,
    families=FAMILIES,
    open=open_driver,
    present=XPUS.present,
    simulate=deferred("vendors.kunlun.simulation.simulate"),
    machines=("kunlunxin",),
)
