"""Enflame GCUs: hard partitions (DRS), whole cards, and the shares by percentage of HAMi 2.7."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.sdk import Family, Vendor, serving
from vendors.enflame import drs, rules
from vendors.enflame.driver import GCUS, open_driver
from vendors.enflame.injection import node_side
from vendors.enflame.settings import EnflameSettings

__all__ = ["VENDOR"]


def families(settings: EnflameSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Partitions, whole cards, and shared cards unless partitions have taken over their name.

    ``clock`` says when a decision is written, in nanoseconds since 1970.
    """
    shared = () if settings.shared == settings.drs else (rules.shared(settings, clock),)
    return (drs.family(settings, clock), rules.whole(settings), *shared)


VENDOR = Vendor(
    name="enflame",
    title="Enflame GCUs",
    noun="GCU",
    settings=EnflameSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=GCUS.present,
)
