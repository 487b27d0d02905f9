"""AMD Instinct GPUs: shared by memory and compute units, and found by sysfs alone."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.amd.devices import GPUS
from vendors.amd.family import families
from vendors.amd.node import open_driver
from vendors.amd.settings import AmdSettings

VENDOR = Vendor(
    name="amd",
    title="AMD GPUs",
    noun="GPU",
    settings=AmdSettings,
    families=families,
    open=open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.amd.simulation.simulate"),
)
