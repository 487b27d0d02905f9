"""Enflame's entry in the vendors' contract."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.enflame import cards, drs
from vendors.enflame.devices import GCUS
from vendors.enflame.node import open_driver
from vendors.enflame.settings import EnflameSettings


def families(settings: EnflameSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Partitions, whole cards, and shared cards unless partitions have taken over their name.

    ``clock`` says when a decision is written, in nanoseconds since 1970.
    """
    shared = () if settings.shared == settings.drs else (cards.shared(settings, clock),)
    return (drs.family(settings, clock), cards.whole(settings), *shared)


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """Enflame's plugins report how many cards there are. How cards can be cut (DRS) no profile says."""
    count = str(len(machine.devices))
    return family.rules.node_devices(
        NodeView(name=machine.name, capacity={cards.CARDS: count, family.resources.count: count}),
    )


FACTS = Facts(parity=deferred("vendors.enflame.parity.parity"), described=_described)
VENDOR = Vendor(
    name="enflame",
    title="Enflame GCUs",
    noun="GCU",
    settings=EnflameSettings,
    families=families,
    open=open_driver,
    present=GCUS.present,
    simulate=deferred("vendors.enflame.simulation.simulate"),
    facts=FACTS,
)
