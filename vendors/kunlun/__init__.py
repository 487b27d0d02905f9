"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from hami_plugin.parity import Parity
from hami_plugin.vendor import Vendor
from vendors.kunlun.family import KunlunSettings, families


def _parity() -> Parity:
    from vendors.kunlun.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="kunlun",
    title="Kunlun XPUs",
    settings=KunlunSettings,
    families=families,
    parity=_parity,
    machine_vendors=("kunlunxin",),
)
