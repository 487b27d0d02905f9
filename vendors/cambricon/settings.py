"""The ``cambricon`` section: HAMi's keys, and where this node's driver and tool are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import model_validator

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import (
    AS_IT_IS,
    Fixed,
    ResourceName,
    TrustSettings,
    setting,
)
from hami_plugin.sdk import Hardware

MLUS = Hardware(title="Cambricon device", vendors=("cabc",), module="cambricon-drv")

DYNAMIC: Final = "dynamic-smlu"
SLOTS: Final = 100
"""Shares of one MLU, each of 1 % of its cores at least."""


class CambriconSettings(TrustSettings):
    """Keys of HAMi's ``cambricon`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "mlu"

    fixed: ClassVar[Mapping[str, Fixed]] = {
        **AS_IT_IS,
        "splitCount": Fixed(
            served=f"a whole MLU goes to one container, or in {SLOTS} shares with mode: {DYNAMIC} or "
            "unlimitedShares: true",
            value=lambda section: SLOTS if section.get("unlimitedShares") or section.get("mode") == DYNAMIC else 1,
        ),
    }
    count: ResourceName = setting("resourceCountName", "cambricon.com/vmlu", "Number of MLUs.")
    memory: ResourceName = setting(
        "resourceMemoryName", "cambricon.com/mlu.smlu.vmemory", "Memory of each MLU in 256 MiB."
    )
    cores: ResourceName = setting("resourceCoreName", "cambricon.com/mlu.smlu.vcore", "Percent of each MLU's cores.")
    cnmon: AbsolutePath = setting(
        "cnmon", Path("/usr/bin/cnmon"), "Cambricon's tool, which knows the MLUs' memory and MLU-Links."
    )
    mode: Literal["default", "dynamic-smlu"] = setting(
        "mode",
        "default",
        "As in Cambricon's plugin: `dynamic-smlu` makes an sMLU instance for each container, of MLUs in sMLU mode.",
    )
    smlu_mode: Literal["keep", "enabled", "disabled"] = setting(
        "smluMode",
        "keep",
        "Whether the daemon switches MLUs' sMLU mode, with cnmon. enabled: on, for `mode: dynamic-smlu`. disabled: "
        "off, to use MLUs whole again. An MLU is switched while no pod or instance has it. keep: never.",
    )
    cndev: AbsolutePath = setting(
        "cndev", Path("/usr/local/neuware/lib64/libcndev.so"), "Cambricon's library, which makes sMLU instances."
    )

    @property
    def cuts(self) -> bool:
        """Whether MLUs are cut into sMLU instances for containers."""
        return self.mode == DYNAMIC

    @model_validator(mode="after")
    def _one_way_to_share(self) -> CambriconSettings:
        if self.cuts and self.unlimited_shares:
            raise ValueError(f"unlimitedShares and mode: {DYNAMIC}, which limits shares, exclude each other")
        return self

    @model_validator(mode="after")
    def _switched_for_a_use(self) -> CambriconSettings:
        if self.smlu_mode == ("disabled" if self.cuts else "enabled"):
            use = "uses MLUs whole" if self.cuts else f"switches MLUs for mode: {DYNAMIC}"
            raise ValueError(f"smluMode {self.smlu_mode} {use}, and mode is {self.mode}")
        return self
