"""Biren GPUs: whole ones, the first that are free."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.biren.devices import present
from vendors.biren.family import families
from vendors.biren.node import open_driver
from vendors.biren.settings import BirenSettings

VENDOR = Vendor(
    name="biren",
    title="Biren GPUs",
    noun="GPU",
    settings=BirenSettings,
    families=families,
    open=open_driver,
    present=present,
    simulate=deferred("vendors.biren.simulation.simulate"),
)
__all__ = ["VENDOR", "BirenSettings", "families"]
