"""Enflame's entry in the vendors' contract."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.sdk import Family, Vendor
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


VENDOR = Vendor(
    name="enflame",
    title="Enflame GCUs",
    noun="GCU",
    settings=EnflameSettings,
    families=families,
    open=open_driver,
    present=GCUS.present,
    simulate=deferred("vendors.enflame.simulation.simulate"),
)
