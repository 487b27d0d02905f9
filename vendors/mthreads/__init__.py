"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

from hami_plugin.sdk import deferred, listed_vendor
from vendors.mthreads.family import families
from vendors.mthreads.node import FABRIC, GPUS, env, list_cards, naming, node_side
from vendors.mthreads.settings import MthreadsSettings

VENDOR = listed_vendor(
    name="mthreads",
    title="Moore Threads GPUs",
    noun="GPU",
    settings=MthreadsSettings,
    families=families,
    hardware=GPUS,
    list_cards=list_cards,
    naming=naming,
    fabric=FABRIC,
    device_nodes=("mtgpu.{}",),
    env=env,
    node=node_side,
    simulate=deferred("vendors.mthreads.simulation.simulate"),
)
