"""The ``kunlun`` section: HAMi's keys, and what this node serves of its XPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import (
    AS_IT_IS,
    Fixed,
    ResourceName,
    ToolSettings,
    TrustSettings,
    setting,
)


class KunlunSettings(ToolSettings, TrustSettings):
    """What this node serves, HAMi's keys of the section with their defaults, and where the tool is."""

    cdi_class: ClassVar[str] = "xpu"
    cdi_class_help: ClassVar[str] = "Class part of the XPUs' CDI names; that of parts is vxpu."

    fixed: ClassVar[Mapping[str, Fixed]] = {
        **AS_IT_IS,
        "splitCount": Fixed(
            served="a whole XPU goes to one container, or to four with serve: parts",
            value=lambda section: 4 if section.get("serve") == "parts" else 1,
        ),
    }
    serve: Literal["whole", "parts"] = setting(
        "serve", "whole", "What this node offers of its XPUs: `whole` ones, or `parts` of a quarter, a half or all."
    )
    count: ResourceName = setting("resourceCountName", "kunlunxin.com/xpu", "Number of whole XPUs.")
    parts: ResourceName = setting("resourceVCountName", "kunlunxin.com/vxpu", "Number of parts, each of another XPU.")
    memory: ResourceName = setting("resourceVMemoryName", "kunlunxin.com/vxpu-memory", "MiB of each part.")
    xpu_smi: AbsolutePath = setting(
        "xpuSmi", Path("/usr/local/bin/xpu-smi"), "Kunlunxin's tool, which lists the XPUs and how they are linked."
    )
    driver_files: tuple[AbsolutePath, ...] = Field(
        (Path("/opt/xre/so"), Path("/usr/local/bin/xpu-smi")),
        alias="driverFiles",
        description="Files and folders of the host's driver that containers receive, read-only, where they exist.",
    )
