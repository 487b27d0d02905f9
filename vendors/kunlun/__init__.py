"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from hami_plugin.sdk import deferred, listed_vendor
from vendors.kunlun.driver import CONTROL, FABRIC, XPUS, list_cards, naming
from vendors.kunlun.injection import env, node_side
from vendors.kunlun.rules import families
from vendors.kunlun.settings import KunlunSettings

VENDOR = listed_vendor(
    name="kunlun",
    title="Kunlun XPUs",
    noun="XPU",
    settings=KunlunSettings,
    families=families,
    hardware=XPUS,
    list_cards=list_cards,
    naming=naming,
    fabric=FABRIC,
    device_nodes=("xpu{}",),
    control_nodes=(CONTROL,),
    env=env,
    node=node_side,
    simulate=deferred("vendors.kunlun.simulation.simulate"),
    machines=("kunlunxin",),
)
