"""MetaX GPUs: whole ones, which MetaX's own plugin picks, and shares of them, which are picked by link zone."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, serving
from vendors.metax.driver import GPUS, open_driver
from vendors.metax.injection import node_side
from vendors.metax.rules import families
from vendors.metax.settings import MetaxSettings

VENDOR = Vendor(
    name="metax",
    title="MetaX GPUs",
    noun="GPU",
    settings=MetaxSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=GPUS.present,
)
