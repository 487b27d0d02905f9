"""The ``hygon`` section: HAMi's keys, the chart's, and where this node's driver files and tool are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting
from hami_plugin.sdk import Hardware

DRIVERS = ("hycu", "hydcu")
DCUS = Hardware(title="Hygon DCU", vendors=("1d94",), kinds=("03", "12"), module=DRIVERS[0])
"""Hygon's processors have functions with the same vendor id; DCUs are display controllers or accelerators."""


class HygonSettings(TreeSettings):
    """Keys of HAMi's ``hygon`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "dcu"

    count: ResourceName = setting("resourceCountName", "hygon.com/dcunum", "Number of DCUs.")
    memory: ResourceName = setting("resourceMemoryName", "hygon.com/dcumem", "Memory of each DCU.")
    memory_factor: int = setting("memoryFactor", 1, "MiB that one unit of memory stands for.", ge=1)
    cores: ResourceName = setting("resourceCoreName", "hygon.com/dcucores", "Percent of each DCU's cores.")
    split_count: int = setting("splitCount", 4, "How many containers may share a DCU.", ge=1, le=20)
    memory_scaling: float = setting(
        "memoryScaling", 1.0, "Which part of each DCU's memory is offered; a DCU lends no more than it has.", gt=0, le=1
    )
    hy_smi: AbsolutePath = setting(
        "hySmi", Path("/opt/hyhal/bin/hy-smi"), "Hygon's tool, which knows each DCU's NUMA node."
    )
    hyhal: AbsolutePath = setting("hyhal", Path("/opt/hyhal"), "The driver's libraries on the host.")
    vdcu_files: AbsolutePath = setting(
        "hygonPath", Path("/opt/hygondriver"), "On the host, what a container needs to use a part of a DCU."
    )

    environment: ClassVar[Mapping[str, str]] = {"HYGONPATH": "hygonPath"}

    def offered(self, memory: int) -> int:
        """How much of a DCU's memory is offered, in MiB."""
        return int(memory * self.memory_scaling)
