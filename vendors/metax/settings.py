"""How MetaX's resources are called, and whether its link zones count between nodes."""

from __future__ import annotations

from hami_plugin.config.settings import ResourceName, VendorSettings, setting


class MetaxSettings(VendorSettings):
    """Keys of HAMi's ``metax`` section, with its defaults."""

    whole: ResourceName = setting("resourceCountName", "metax-tech.com/gpu", "Number of whole GPUs.")
    count: ResourceName = setting("resourceVCountName", "metax-tech.com/sgpu", "Number of GPUs to share.")
    memory: ResourceName = setting(
        "resourceVMemoryName", "metax-tech.com/vmemory", "Memory of each shared GPU: GiB, or bytes with a suffix."
    )
    cores: ResourceName = setting("resourceVCoreName", "metax-tech.com/vcore", "Percent of each shared GPU's cores.")
    topology_aware: bool = setting(
        "sgpuTopologyAware", False, "Prefer nodes where GPUs of one link zone are granted, unless the pod says."
    )
