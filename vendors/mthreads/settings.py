"""The ``mthreads`` section: HAMi's keys, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, ToolSettings, TrustSettings, setting


class MthreadsSettings(ToolSettings, TrustSettings):
    """Keys of HAMi's ``mthreads`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "mtgpu"
    cdi_class_help: ClassVar[str] = "Class part of the GPUs' CDI names."

    count: ResourceName = setting("resourceCountName", "mthreads.com/vgpu", "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", "mthreads.com/sgpu-memory", "512 MiB of all GPUs together.")
    cores: ResourceName = setting("resourceCoreName", "mthreads.com/sgpu-core", "Cores of all GPUs together, 16 each.")
    split_count: int = setting("splitCount", 16, "How many containers may share a GPU.", ge=1, le=100)
    mthreads_gmi: AbsolutePath = setting(
        "mthreadsGmi",
        Path("/usr/bin/mthreads-gmi"),
        "Moore Threads' tool, which lists the GPUs and how they are linked.",
    )
    driver_files: tuple[AbsolutePath, ...] = Field(
        (Path("/usr/lib/x86_64-linux-gnu/musa"), Path("/usr/bin/mthreads-gmi")),
        alias="driverFiles",
        description="Files and folders of the host's driver that containers receive, read-only, where they exist.",
    )
