"""The ``cambricon`` section: HAMi's keys, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hami_plugin.config.settings import AbsolutePath, CdiClass, CdiSettings, ResourceName, TreeSettings, setting


class MluCdi(CdiSettings):
    """CDI names of MLUs."""

    cls: CdiClass = Field("mlu", alias="class", description="Class part of the devices' CDI names.")


class CambriconSettings(TreeSettings):
    """Keys of HAMi's ``cambricon`` section with its defaults, then ours."""

    count: ResourceName = setting("resourceCountName", "cambricon.com/vmlu", "Number of MLUs.")
    memory: ResourceName = setting(
        "resourceMemoryName", "cambricon.com/mlu.smlu.vmemory", "Memory of each MLU in 256 MiB."
    )
    cores: ResourceName = setting("resourceCoreName", "cambricon.com/mlu.smlu.vcore", "Percent of each MLU's cores.")
    unenforced_shares: Literal["serve", "refuse"] = setting(
        "unenforcedShares",
        "serve",
        "What becomes of a share of an MLU. The container is told its limits and can exceed them, since nothing here "
        "makes an sMLU instance: serve it so, or refuse it and serve whole MLUs only.",
    )
    cnmon: AbsolutePath = setting(
        "cnmon", Path("/usr/bin/cnmon"), "Cambricon's tool, which knows the MLUs' memory and MLU-Links."
    )
    cdi: MluCdi = Field(default_factory=MluCdi, description="CDI names and specs.")
