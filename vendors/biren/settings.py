"""The ``biren`` section: HAMi's key, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting


class BirenSettings(TreeSettings):
    """Keys of HAMi's ``biren`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "biren"

    count: ResourceName = setting("resourceCountName", "birentech.com/gpu", "Number of GPUs.")
    brsmi: AbsolutePath = setting(
        "brsmi", Path("/usr/bin/brsmi"), "Biren's tool, which knows each GPU's memory and name."
    )
    driver_root: AbsolutePath = setting(
        "driverRoot",
        Path("/usr/local/birensupa/driver"),
        "The driver's libraries on the host; containers with a GPU see them at the same place, where they are there.",
    )
