"""The vendor's settings at their defaults, as plain values: the real ones need pydantic.

A test holds this against ``NvidiaSettings``, field by field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hami_plugin.model.delivery import Delivery, Way
from vendors.nvidia.xid import XidPolicy

if TYPE_CHECKING:
    from vendors.nvidia.settings import NvidiaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingHidden:
    """No card is left out."""

    def hides(self, *, uuid: str = "", index: int = -1) -> bool:  # noqa: ARG002  # the setting's signature
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryFault:
    """Every XID counts but the application's own."""

    def policy(self) -> XidPolicy:
        return XidPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the driver and the family read of the settings."""

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    device_split_count: int = 10
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    pre_configured_device_memory: int = 0
    enable_numa_topology: bool = False
    lib_cuda_log_level: int | None = 1
    disable_core_limit: bool = False
    filter_devices: NothingHidden = NothingHidden()
    operating_mode: str = "hami-core"
    compute_mode: str = "Default"
    delivery: Delivery = field(
        default_factory=lambda: Delivery(ways=(Way.ENVVAR,), kind="k8s.device-plugin.nvidia.com/gpu")
    )
    pass_device_specs: bool = False
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    nvidia_driver_root: Path = Path("/")
    nvidia_dev_root: Path | None = None
    container_driver_root: Path = Path("/driver-root")
    nvidia_cdi_hook_path: Path | None = None
    cdi_generator: str = "builtin"
    nvml_library: Path | None = None
    sysfs_root: Path | None = None
    proc_root: Path | None = None
    libvgpu_version: str = "v2.10.0"
    healthchecks: EveryFault = EveryFault()
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_gpu_num: int = 1
    gpu_core_policy: str = "default"
    overwrite_env: bool = False
    runtime_class_name: str = ""

    def settings(self) -> NvidiaSettings:
        """These, under the type that the driver asks for; it reads attributes only."""
        return cast("NvidiaSettings", self)

    def device_node(self, name: str) -> Path:
        """Host path of a device node."""
        return Path("/dev") / name
