"""How MetaX's resources are called, whether link zones count between nodes, and how this node offers its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import CdiClass, CdiSettings, ResourceName, TrustSettings, listed, setting
from hami_plugin.model.delivery import Delivery
from hami_plugin.sdk import Hardware

GPUS = Hardware(title="MetaX GPU", vendors=("9999",), module="metax")

UNCUT = "sGPUs are not cut on this node: a container has its GPU alone, and all of its memory and cores"


class MetaxCdi(CdiSettings):
    """CDI names as HAMi's own."""

    cls: CdiClass = Field("metax-gpu", alias="class", description="Class part of whole GPUs' CDI names.")
    shared: CdiClass = Field("metax-sgpu", alias="sharedClass", description="The same for GPUs in mode `sgpu`.")


class MetaxSettings(TrustSettings):
    """Keys of HAMi's ``metax`` section, with its defaults, then ours."""

    whole: ResourceName = setting("resourceCountName", "metax-tech.com/gpu", "Number of whole GPUs.")
    count: ResourceName = setting("resourceVCountName", "metax-tech.com/sgpu", "Number of GPUs to share.")
    memory: ResourceName = setting(
        "resourceVMemoryName", "metax-tech.com/vmemory", "Memory of each shared GPU: GiB, or bytes with a suffix."
    )
    cores: ResourceName = setting("resourceVCoreName", "metax-tech.com/vcore", "Percent of each shared GPU's cores.")
    topology_aware: bool = setting(
        "sgpuTopologyAware", False, "Prefer nodes where GPUs of one link zone are granted, unless the pod says."
    )
    mode: Literal["native", "sgpu"] = setting(
        "mode", "sgpu", "As which resource this node's GPUs are offered: `native` whole ones, `sgpu` those to share."
    )
    mx_smi: AbsolutePath = setting(
        "mxSmi", Path("/opt/mxdriver/bin/mx-smi"), "MetaX's tool, which knows each GPU's UUID, memory and links."
    )
    mounts: Annotated[tuple[AbsolutePath, ...], BeforeValidator(listed)] = setting(
        "driverMounts", (), "Directories of the host that images lack, such as /opt/mxdriver; read-only at their place."
    )
    cdi: MetaxCdi = Field(default_factory=MetaxCdi, description="CDI names and specs.")

    @property
    def unlimited(self) -> str:
        return UNCUT if self.unlimited_shares and self.mode == "sgpu" else ""

    @property
    def shared_delivery(self) -> Delivery:
        """How GPUs in mode ``sgpu`` are handed over."""
        cdi = self.cdi.model_copy(update={"cls": self.cdi.shared})
        return self.model_copy(update={"cdi": cdi}).delivery
