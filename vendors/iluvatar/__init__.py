"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.sdk import deferred, listed_vendor
from vendors.iluvatar.family import families
from vendors.iluvatar.node import CONTROL, GPUS, LINK, env, list_cards, naming, node_side
from vendors.iluvatar.settings import IluvatarSettings

VENDOR = listed_vendor(
    name="iluvatar",
    title="Iluvatar GPUs",
    noun="GPU",
    settings=IluvatarSettings,
    families=families,
    hardware=GPUS,
    list_cards=list_cards,
    naming=naming,
    device_nodes=("iluvatar{}",),
    control_nodes=(CONTROL,),
    optional_nodes=(LINK,),
    env=env,
    node=node_side,
    simulate=deferred("vendors.iluvatar.simulation.simulate"),
)
