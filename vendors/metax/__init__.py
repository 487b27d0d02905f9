"""MetaX GPUs: whole ones, which MetaX's own plugin picks, and shares of them, which are picked by link zone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor, as_described
from hami_plugin.sdk.lazy import deferred
from vendors.metax import gpu, node, sgpu
from vendors.metax.cards import GPUS
from vendors.metax.settings import MetaxSettings


def families(settings: MetaxSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Whole GPUs, and shares. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    return (
        replace(gpu.family(settings), node=node.whole(settings)),
        replace(sgpu.family(settings, clock), node=node.shared(settings)),
    )


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """Whole GPUs have no shares. Shares know the zone of linked GPUs that theirs is in."""
    whole = family.device_type == gpu.DEVICE_TYPE
    zones = {device.index: device.extra.get("link_zone", 0) for device in machine.devices}
    return tuple(
        replace(info, count=1) if whole else replace(info, custom={"LinkZone": zones[info.index], "QosPolicy": ""})
        for info in as_described(family, machine)
    )


FACTS = Facts(parity=deferred("vendors.metax.parity.parity"), described=_described)
VENDOR = Vendor(
    name="metax",
    title="MetaX GPUs",
    noun="GPU",
    settings=MetaxSettings,
    families=families,
    open=node.open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.metax.simulation.simulate"),
    facts=FACTS,
)
