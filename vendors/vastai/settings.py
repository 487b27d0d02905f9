"""The ``vastai`` section: HAMi's key, its agent's flag, and where this node's tool is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting


class VastaiSettings(TreeSettings):
    """Keys of HAMi's ``vastai`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "vastai"

    count: ResourceName = setting("resourceCountName", "vastaitech.com/va", "Number of cards, or of dies.")
    strategy: Literal["card", "die"] = setting(
        "deviceStrategy", "card", "What a device is: a whole card, or each of its dies."
    )
    vasmi: AbsolutePath = setting(
        "vasmi", Path("/usr/bin/vasmi"), "Vastai's tool, which knows each die's card and memory."
    )
