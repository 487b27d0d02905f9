"""Ascend NPUs: seven chips, each a family of its own, cut by templates or shared by HAMi's core."""

from __future__ import annotations

from hami_plugin.parity import Parity
from hami_plugin.vendor import Vendor
from vendors.ascend.chips import AscendSettings
from vendors.ascend.family import families
from vendors.ascend.node.opening import open_driver, present, simulate


def _parity() -> Parity:
    from vendors.ascend.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="ascend",
    title="Ascend NPUs",
    settings=AscendSettings,
    open=open_driver,
    present=present,
    families=families,
    simulate=simulate,
    parity=_parity,
    machine_vendors=("ascend",),
)
