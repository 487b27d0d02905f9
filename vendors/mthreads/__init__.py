"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from hami_plugin.sdk.lazy import deferred
from vendors.mthreads.family import families
from vendors.mthreads.node import GPUS, node_side, open_driver
from vendors.mthreads.settings import MthreadsSettings

FAMILIES = serving(families, node_side)
VENDOR = Vendor(
    name="mthreads",
    title="Moore Threads GPUs",
    noun="GPU",
    settings=MthreadsSettings,
    families=FAMILIES,
    open=open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.mthreads.simulation.simulate"),
)
