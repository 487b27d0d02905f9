"""AMD Instinct GPUs: shared by memory and compute units, and found by sysfs alone."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.amd.settings import GPUS, AmdSettings

VENDOR = Vendor(
    name="amd",
    title="AMD GPUs",
    noun="GPU",
    settings=AmdSettings,
    families=serving(lazy("vendors.amd.rules:families"), lazy("vendors.amd.injection:node_side")),
    open=lazy("vendors.amd.driver:open_driver"),
    present=GPUS.present,
)
