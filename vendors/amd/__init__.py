"""AMD Instinct GPUs: shared by memory and compute units, and found by sysfs alone."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from vendors.amd.driver import GPUS, open_driver
from vendors.amd.injection import node_side
from vendors.amd.rules import families
from vendors.amd.settings import AmdSettings

VENDOR = Vendor(
    name="amd",
    title="AMD GPUs",
    noun="GPU",
    settings=AmdSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=GPUS.present,
)
