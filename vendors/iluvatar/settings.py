"""The ``iluvatars`` section: HAMi's list of chips, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import StringConstraints

from hami_plugin.config.settings import AbsolutePath, Section
from hami_plugin.config.vendors import ResourceName, ToolSettings, TrustSettings, setting


class Chip(Section):
    """An entry of HAMi's ``iluvatars``."""

    chip: str = setting("chipName", "", "What people call the chip.")
    word: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=40)] = (
        setting("commonWord", ..., "The chip's word in annotations.")
    )
    count: ResourceName = setting("resourceCountName", ..., "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", ..., "Memory of each GPU in 256 MiB.")
    cores: ResourceName = setting("resourceCoreName", ..., "Percent of each GPU's cores.")


def _chip(word: str) -> Chip:
    name = f"iluvatar.ai/{word}"
    return Chip(chip=word, word=word, count=f"{name}-vgpu", memory=f"{name}.vMem", cores=f"{name}.vCore")


class IluvatarSettings(ToolSettings, TrustSettings):
    """HAMi's list ``iluvatars`` with its defaults, then ours."""

    cdi_class: ClassVar[str] = "iluvatar"
    cdi_class_help: ClassVar[str] = "Class part of CDI names, before the chip's word."

    hami_section: ClassVar[str] = "iluvatars"
    hami_list: ClassVar[str] = "chips"

    chips: tuple[Chip, ...] = setting(
        "chips", tuple(map(_chip, ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))), "The chips and their resources."
    )
    split_count: int = setting("splitCount", 10, "How many containers may share a GPU.", ge=1, le=1000)
    ixsmi: AbsolutePath = setting("ixsmi", Path("/usr/local/corex/bin/ixsmi"), "Iluvatar's tool, which lists the GPUs.")
