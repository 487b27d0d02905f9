"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor, as_described, serving
from hami_plugin.sdk.lazy import deferred
from vendors.mthreads.family import CARD_CORES, families
from vendors.mthreads.node import GPUS, node_side, open_driver
from vendors.mthreads.settings import MthreadsSettings


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    return tuple(replace(one, devcore=CARD_CORES) for one in as_described(family, machine))


FACTS = Facts(parity=deferred("vendors.mthreads.parity.parity"), described=_described)
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
    facts=FACTS,
)
