"""The ``nvidia`` section: HAMi's keys of ``device-config.yaml`` and ``config.json``, and NVIDIA's flags that matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hami_plugin.config.settings import CdiSettings, DnsName, ResourceName, Section, ServedSettings, listed
from hami_plugin.model.delivery import Way
from vendors.nvidia.xid import XidPolicy, parse_selection

_SCHEDULER = "Read by HAMi's scheduler and webhook; accepted here so that one file serves both."


def _number(value: object) -> object:
    """HAMi writes the log level as a number or as text."""
    text = value.strip() if isinstance(value, str) else value
    return None if text == "" else int(text) if isinstance(text, str) and text.isdecimal() else text


class FilterDevices(Section):
    """Cards that are left out of everything, by UUID or by NVML index."""

    uuid: tuple[str, ...] = Field((), description="UUIDs to leave out.")
    index: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="NVML indices to leave out.")

    def hides(self, *, uuid: str = "", index: int = -1) -> bool:
        return uuid in self.uuid or index in self.index


class HealthChecks(Section):
    """Which XIDs count, in the syntax of HAMi's ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``."""

    disable: Annotated[tuple[str | int, ...], BeforeValidator(listed)] = Field(
        (), description="XIDs to ignore besides the application faults; `all` or `xids` for every one."
    )
    enable: Annotated[tuple[str | int, ...], BeforeValidator(listed)] = Field(
        (), description="XIDs to act upon after all; outranks `disable`. `all` includes application faults."
    )

    @field_validator("disable", "enable")
    @classmethod
    def _readable(cls, value: tuple[str | int, ...]) -> tuple[str | int, ...]:
        parse_selection(value)
        return value

    def policy(self) -> XidPolicy:
        return XidPolicy(disable=parse_selection(self.disable), enable=parse_selection(self.enable))


class MigProfiles(Section):
    """Which MIG profiles cards of these models may be cut into."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


class NvidiaCdi(CdiSettings):
    """CDI names as HAMi's own, and who writes the spec."""

    generator: Literal["builtin", "nvidia-ctk"] = Field(
        "builtin", description="Who describes the cards: this daemon, or NVIDIA's nvidia-ctk where it is installed."
    )
    vendor: DnsName = Field("k8s.device-plugin.nvidia.com", description="Vendor part of the devices' CDI names.")


class NvidiaSettings(ServedSettings):
    """NVIDIA cards: keys of HAMi's ``nvidia`` section with HAMi's defaults, then the flags of its plugin, then ours."""

    plain: ClassVar[Way] = Way.ENVVAR
    served_ways: ClassVar[frozenset[Way]] = frozenset(Way) - {Way.DEVICE_SPECS}

    environment: ClassVar[Mapping[str, str]] = {
        "DEVICE_LIST_STRATEGY": "deviceListStrategy",
        "CDI_ANNOTATION_PREFIX": "cdi.annotationPrefix",
        "PASS_DEVICE_SPECS": "passDeviceSpecs",
        "GDRCOPY_ENABLED": "gdrcopyEnabled",
        "GDS_ENABLED": "gdsEnabled",
        "MOFED_ENABLED": "mofedEnabled",
        "NVIDIA_DRIVER_ROOT": "nvidiaDriverRoot",
        "NVIDIA_DEV_ROOT": "nvidiaDevRoot",
        "DRIVER_ROOT_CTR_PATH": "containerDriverRoot",
        "CONTAINER_DRIVER_ROOT": "containerDriverRoot",
        "NVIDIA_CDI_HOOK_PATH": "nvidiaCdiHookPath",
        "NVIDIA_CTK_PATH": "nvidiaCdiHookPath",
        "DP_DISABLE_HEALTHCHECKS": "healthchecks.disable",
        "DP_ENABLE_HEALTHCHECKS": "healthchecks.enable",
    }
    node_config: ClassVar[Mapping[str, str]] = {
        "operatingmode": "operatingMode",
        "devicesplitcount": "deviceSplitCount",
        "devicememoryscaling": "deviceMemoryScaling",
        "devicecorescaling": "deviceCoreScaling",
        "preconfigureddevicememory": "preConfiguredDeviceMemory",
        "libcudaloglevel": "libCudaLogLevel",
        "enablenumatopology": "enableNumaTopology",
        "filterdevices": "filterDevices",
    }

    resource_count_name: ResourceName = Field(
        "nvidia.com/gpu", alias="resourceCountName", description="Resource that the kubelet counts."
    )
    resource_memory_name: ResourceName = Field(
        "nvidia.com/gpumem", alias="resourceMemoryName", description="MiB of each card."
    )
    resource_memory_percentage_name: ResourceName = Field(
        "nvidia.com/gpumem-percentage",
        alias="resourceMemoryPercentageName",
        description="Percent of each card's memory.",
    )
    resource_core_name: ResourceName = Field(
        "nvidia.com/gpucores", alias="resourceCoreName", description="Percent of each card's cores."
    )
    resource_priority_name: ResourceName = Field(
        "nvidia.com/priority", alias="resourcePriorityName", description="Task priority."
    )

    device_split_count: int = Field(
        10, ge=1, le=1000, alias="deviceSplitCount", description="How many containers may share a card."
    )
    device_memory_scaling: float = Field(
        1.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        alias="deviceMemoryScaling",
        description="Memory on offer, as a multiple of what the card has; above 1 oversubscribes.",
    )
    device_core_scaling: float = Field(
        1.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        alias="deviceCoreScaling",
        description="Cores on offer, as a multiple of the card.",
    )
    pre_configured_device_memory: int = Field(
        0,
        ge=0,
        le=4 * 1024 * 1024,
        alias="preConfiguredDeviceMemory",
        description="MiB of a card whose driver cannot tell, as of unified-memory parts. 0: it is not offered.",
    )
    enable_numa_topology: bool = Field(
        False, alias="enableNumaTopology", description="Give the kubelet each card's NUMA node."
    )
    lib_cuda_log_level: Annotated[Literal[0, 1, 2, 3, 4] | None, BeforeValidator(_number)] = Field(
        1,
        alias="libCudaLogLevel",
        description="Log level of HAMi-core in containers: 0 and 1 errors, 2 warnings, 3 info, 4 debug. "
        "Empty: its own default.",
    )
    disable_core_limit: bool = Field(
        False, alias="disableCoreLimit", description="Tell HAMi-core not to limit cores at all."
    )
    filter_devices: FilterDevices = Field(
        default_factory=FilterDevices, alias="filterDevices", description="Cards to leave out."
    )
    operating_mode: Literal["hami-core", "mig", "mps"] = Field(
        "hami-core",
        alias="operatingMode",
        description="How cards are shared. mps is registered as such and injects as hami-core does; mig is not served.",
    )

    device_list_strategy: Annotated[tuple[Way | Literal["auto"], ...], BeforeValidator(listed)] = Field(
        (Way.ENVVAR,),
        min_length=1,
        alias="deviceListStrategy",
        description="How a container receives its cards; `auto` looks at what this node's container runtime can do.",
    )
    cdi: NvidiaCdi = Field(default_factory=NvidiaCdi, description="CDI names and specs.")
    pass_device_specs: bool = Field(
        False, alias="passDeviceSpecs", description="Hand the cards' device nodes to the kubelet too."
    )
    gdrcopy_enabled: bool = Field(False, alias="gdrcopyEnabled", description="Ask the runtime for GDRCopy.")
    gds_enabled: bool = Field(False, alias="gdsEnabled", description="Ask the runtime for GPUDirect Storage.")
    mofed_enabled: bool = Field(False, alias="mofedEnabled", description="Ask the runtime for MOFED.")
    nvidia_driver_root: Path = Field(
        Path("/"), alias="nvidiaDriverRoot", description="Root of the driver installation on the host."
    )
    nvidia_dev_root: Path | None = Field(
        None, alias="nvidiaDevRoot", description="Host directory that holds dev/nvidia*. Empty: nvidiaDriverRoot."
    )
    container_driver_root: Path = Field(
        Path("/driver-root"),
        alias="containerDriverRoot",
        description="Where this process sees nvidiaDriverRoot; searched for the driver library.",
    )

    nvidia_cdi_hook_path: Path | None = Field(
        None,
        alias="nvidiaCdiHookPath",
        description="nvidia-cdi-hook or nvidia-ctk on the host, for CDI. Empty: looked for in the usual places.",
    )

    nvml_library: Path | None = Field(
        None, alias="nvmlLibrary", description="Driver library to load. Empty: the loader's libnvidia-ml.so.1."
    )
    sysfs_root: Path | None = Field(None, alias="sysfsRoot", description="Another place than /sys.")
    proc_root: Path | None = Field(None, alias="procRoot", description="Another place than /proc.")
    dev_root: Path | None = Field(
        None, alias="devRoot", description="Another place than /dev; outranks nvidiaDevRoot. For simulations."
    )
    libvgpu_version: str = Field(
        "v2.10.0",
        pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$|^$",
        alias="libvgpuVersion",
        description="Mount libvgpu.so.<version> where the host has it, else libvgpu.so.",
    )
    healthchecks: HealthChecks = Field(default_factory=HealthChecks, description="Which XIDs count.")

    default_memory: int = Field(0, ge=0, alias="defaultMemory", description=_SCHEDULER)
    default_cores: int = Field(0, ge=0, le=100, alias="defaultCores", description=_SCHEDULER)
    default_gpu_num: int = Field(1, ge=0, alias="defaultGPUNum", description=_SCHEDULER)
    memory_factor: int = Field(1, ge=1, alias="memoryFactor", description=_SCHEDULER)
    overwrite_env: bool = Field(False, alias="overwriteEnv", description=_SCHEDULER)
    gpu_core_policy: Literal["default", "force", "disable"] = Field(
        "default", alias="gpuCorePolicy", description=_SCHEDULER
    )
    runtime_class_name: str = Field("", alias="runtimeClassName", description=_SCHEDULER)
    mig_profile_allowlist: tuple[MigProfiles, ...] = Field(
        (), alias="migProfileAllowlist", description="Read in operating mode mig only, which is not served."
    )
    known_mig_geometries: tuple[Any, ...] = Field(
        (), alias="knownMigGeometries", description="HAMi 2.9 and older; accepted and not used."
    )

    @field_validator("operating_mode")
    @classmethod
    def _served_mode(cls, value: str) -> str:
        if value == "mig":
            raise ValueError(
                "operating mode 'mig' is not supported yet; use 'hami-core' and switch MIG off (nvidia-smi -mig 0)"
            )
        return value

    @model_validator(mode="after")
    def _distinct_names(self) -> NvidiaSettings:
        names = (
            self.resource_count_name,
            self.resource_memory_name,
            self.resource_memory_percentage_name,
            self.resource_core_name,
            self.resource_priority_name,
        )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"resource name {twice[0]!r} is used twice; each resource needs its own name")
        return self

    @property
    def cdi_generator(self) -> str:
        return self.cdi.generator

    def device_node(self, name: str) -> Path:
        """Host path of a device node, such as ``nvidia0``."""
        folder = self.dev_root or (self.nvidia_dev_root or self.nvidia_driver_root) / "dev"
        return folder / name
