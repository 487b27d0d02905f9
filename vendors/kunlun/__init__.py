"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from hami_plugin.sdk import Facts, Vendor, serving
from hami_plugin.sdk.lazy import deferred
from vendors.kunlun.family import families
from vendors.kunlun.node import XPUS, node_side, open_driver
from vendors.kunlun.settings import KunlunSettings

FACTS = Facts(parity=deferred("vendors.kunlun.parity.parity"), machines=("kunlunxin",))
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
    facts=FACTS,
)
