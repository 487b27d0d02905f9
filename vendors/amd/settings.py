"""The ``amd`` section: HAMi's keys, and how this node's cards are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hami_plugin.config.vendors import ResourceName, TreeSettings, setting
from hami_plugin.sdk import Hardware

GPUS = Hardware(title="AMD GPU", vendors=("1002",), kinds=("03", "12"), module="amdgpu")


class AmdSettings(TreeSettings):
    """Keys of HAMi's ``amd`` section with its chart's defaults, then ours."""

    cdi_class: ClassVar[str] = "amd-gpu"

    helm: ClassVar[Mapping[str, str]] = {"splitCount": "deviceSplitCount"}

    count: ResourceName = setting("resourceCountName", "amd.com/gpu", "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", "amd.com/gpumem", "Memory of each GPU in MiB.")
    cores: ResourceName = setting(
        "resourceCoreName", "amd.com/gpucores", "Percent of each GPU's compute units, 1 to 100."
    )
    split_count: int = setting("deviceSplitCount", 10, "How many containers may share a card.", ge=1, le=1000)
