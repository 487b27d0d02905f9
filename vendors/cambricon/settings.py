"""The ``cambricon`` section: HAMi's keys, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hami_plugin.config.kinds import AbsolutePath
from hami_plugin.config.vendors import CdiClass, CdiSettings, ResourceName, TrustSettings, setting


class MluCdi(CdiSettings):
    """CDI names of MLUs."""

    cls: CdiClass = Field("mlu", alias="class", description="Class part of the devices' CDI names.")


class CambriconSettings(TrustSettings):
    """Keys of HAMi's ``cambricon`` section with its defaults, then ours."""

    count: ResourceName = setting("resourceCountName", "cambricon.com/vmlu", "Number of MLUs.")
    memory: ResourceName = setting(
        "resourceMemoryName", "cambricon.com/mlu.smlu.vmemory", "Memory of each MLU in 256 MiB."
    )
    cores: ResourceName = setting("resourceCoreName", "cambricon.com/mlu.smlu.vcore", "Percent of each MLU's cores.")
    cnmon: AbsolutePath = setting(
        "cnmon", Path("/usr/bin/cnmon"), "Cambricon's tool, which knows the MLUs' memory and MLU-Links."
    )
    cdi: MluCdi = Field(default_factory=MluCdi, description="CDI names and specs.")
