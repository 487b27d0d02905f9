"""Enflame's section of the configuration."""

from __future__ import annotations

from hami_plugin.config.settings import ResourceName, VendorSettings, setting


class EnflameSettings(VendorSettings):
    """Keys of HAMi's ``enflame`` section, with its defaults."""

    drs: ResourceName = setting("resourceNameDRSGCU", "enflame.com/drs-gcu", "Slices of one card, as a partition.")
    memory: ResourceName = setting(
        "resourceNameGCUMemory", "enflame.com/gcu-memory", "Least memory of a partition, in GB or, if large, in MiB."
    )
    cores: ResourceName = setting(
        "resourceNameGCUCore", "enflame.com/gcu-core", "Least part of a card's cores of a partition, in percent."
    )
    whole: ResourceName = setting("resourceNameGCU", "enflame.com/gcu", "Number of whole cards.")
    shared: ResourceName = setting("resourceNameVGCU", "enflame.com/vgcu", "Number of cards to share, as in HAMi 2.7.")
    percentage: ResourceName = setting(
        "resourceNameVGCUPercentage", "enflame.com/vgcu-percentage", "Percent of each shared card."
    )
    slices: int = setting(
        "sharedSlicesPerCard",
        0,
        "Into how many slices Enflame's gcushare plugin cuts a card: shares are rounded up to them, and asked for as "
        "enflame.com/shared-gcu. 0 leaves a share as it was written.",
        ge=0,
        le=100,
    )
