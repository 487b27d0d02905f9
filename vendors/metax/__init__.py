"""MetaX GPUs: whole ones, which MetaX's own plugin picks, and shares of them, which are picked by link zone."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, lazy, serving
from vendors.metax.settings import GPUS, MetaxSettings

VENDOR = Vendor(
    name="metax",
    title="MetaX GPUs",
    noun="GPU",
    settings=MetaxSettings,
    families=serving(lazy("vendors.metax.rules:families"), lazy("vendors.metax.injection:node_side")),
    open=lazy("vendors.metax.driver:open_driver"),
    present=GPUS.present,
)
