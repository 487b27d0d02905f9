"""The ``enflame`` section: HAMi's keys, and how this node serves its cards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import AS_IT_IS, Fixed, ResourceName, TreeSettings, setting
from hami_plugin.sdk import Hardware

GCUS = Hardware(title="Enflame device", vendors=("1e36",), module="enflame")


class EnflameSettings(TreeSettings):
    """How this node serves its cards, HAMi's keys of the section with their defaults, and where the tool is."""

    cdi_class: ClassVar[str] = "gcu"

    fixed: ClassVar[Mapping[str, Fixed]] = {
        **AS_IT_IS,
        "splitCount": Fixed(
            served="a whole card goes to one container, in 100 shares with serve: shared, or to as many as it has "
            "partitions or slices",
            value=lambda section: 100 if section.get("serve") == "shared" else 1,
        ),
    }
    serve: Literal["auto", "whole", "shared", "partitions"] = setting(
        "serve",
        "auto",
        "How this node's cards are handed out, which HAMi books apart. `auto`: where all have been set up for "
        "partitions (DRS, with efsmi), in shares by percentage, each of which is a partition; else whole. `whole`; "
        "`shared`: by percentage, which nothing enforces; `partitions`: by slices, as partitions.",
    )
    cut: Literal["on-demand", "beforehand"] = setting(
        "cut",
        "on-demand",
        "When partitions are cut. `on-demand`: for a container when it is allocated, and they go with its pod; those "
        "that others have cut stay. `beforehand`: with efsmi, and they are lent.",
    )
    drs_mode: Literal["keep", "enabled", "disabled"] = setting(
        "drsMode",
        "keep",
        "Whether the daemon switches cards into the mode in which they are cut (DRS), with efsmi. enabled: for "
        "`serve: partitions`, or `auto`, which then serves shares. disabled: out of it, to use cards whole again. A "
        "card is switched while no pod or partition has it. keep: never.",
    )
    slices: int = setting(
        "sharedSlicesPerCard",
        0,
        "Into how many slices Enflame's gcushare plugin cuts a card: shares are rounded up to them, and asked for as "
        "enflame.com/shared-gcu. 0 leaves a share as it was written.",
        ge=0,
        le=100,
    )
    whole: ResourceName = setting("resourceNameGCU", "enflame.com/gcu", "Number of whole cards.")
    drs: ResourceName = setting("resourceNameDRSGCU", "enflame.com/drs-gcu", "Slices of one card, as a partition.")
    memory: ResourceName = setting(
        "resourceNameGCUMemory", "enflame.com/gcu-memory", "Least memory of a partition, in GB or, if large, in MiB."
    )
    cores: ResourceName = setting(
        "resourceNameGCUCore", "enflame.com/gcu-core", "Least part of a card's cores of a partition, in percent."
    )
    shared: ResourceName = setting("resourceNameVGCU", "enflame.com/vgcu", "Number of cards to share, as in HAMi 2.7.")
    percentage: ResourceName = setting(
        "resourceNameVGCUPercentage", "enflame.com/vgcu-percentage", "Percent of each shared card."
    )
    efsmi: AbsolutePath = setting(
        "efsmi", Path("/usr/sbin/efsmi"), "Enflame's tool, which knows the cards' memory and partitions."
    )

    @property
    def on_demand(self) -> bool:
        """Whether containers' partitions are cut for them."""
        return self.cut == "on-demand" and self.serve in ("auto", "partitions")

    @property
    def unlimited(self) -> str:
        shares = "nothing on this node holds a container to its percentage of a card"
        return shares if self.serve == "shared" else ""

    @property
    def divided(self) -> bool | None:
        """Whether all cards are to be in DRS mode, as far as that is set."""
        return None if self.drs_mode == "keep" else self.drs_mode == "enabled"

    @model_validator(mode="after")
    def _switched_for_a_use(self) -> EnflameSettings:
        served = {"enabled": ("auto", "partitions"), "disabled": ("auto", "whole")}.get(self.drs_mode)
        if served and self.serve not in served:
            raise ValueError(
                f"drsMode {self.drs_mode} goes with serve: {' or '.join(served)}, and serve is {self.serve}"
            )
        return self
