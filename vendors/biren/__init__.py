"""Biren GPUs: whole ones, the first that are free."""

from __future__ import annotations

from hami_plugin.deferred import deferred
from hami_plugin.vendor import NodeSide, Vendor
from vendors.biren.devices import present
from vendors.biren.family import families
from vendors.biren.node import open_driver
from vendors.biren.settings import BirenSettings

NODE = NodeSide(open=open_driver, present=present, simulate=deferred("vendors.biren.simulation.simulate"))
VENDOR = Vendor(name="biren", title="Biren GPUs", settings=BirenSettings, families=families, node=NODE)
__all__ = ["VENDOR", "BirenSettings", "families"]
