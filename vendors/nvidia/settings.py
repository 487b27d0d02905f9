"""The ``nvidia`` section: HAMi's keys of ``device-config.yaml`` and ``config.json``, and NVIDIA's flags that matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hami_plugin.config.settings import DnsName, Section
from hami_plugin.config.vendors import CdiSettings, Fixed, ResourceName, ServedSettings, listed, setting
from hami_plugin.model.delivery import Way
from vendors.nvidia.instances import Strategy
from vendors.nvidia.xid import XidPolicy, parse_selection


class FilterDevices(Section):
    """Cards that are left out of everything, by UUID or by NVML index."""

    uuid: tuple[str, ...] = Field((), description="UUIDs to leave out.")
    index: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="NVML indices to leave out.")

    def hides(self, *, uuid: str = "", index: int = -1) -> bool:
        return uuid in self.uuid or index in self.index


class CutDevices(Section):
    """The cards that ``operatingMode: mig`` cuts, by UUID or by NVML index; all where none is named."""

    uuid: tuple[str, ...] = Field((), description="UUIDs of cards to cut.")
    index: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="NVML indices of cards to cut.")

    @property
    def some(self) -> bool:
        """Whether others stay."""
        return bool(self.uuid or self.index)

    def names(self, *, uuid: str, index: int) -> bool:
        return not self.some or uuid in self.uuid or index in self.index


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


Scaling = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]

_SCHEDULER = "Read by HAMi's scheduler and webhook; accepted here so that one file serves both."


def _number(value: object) -> object:
    """HAMi writes the log level as a number or as text."""
    text = value.strip() if isinstance(value, str) else value
    return None if text == "" else int(text) if isinstance(text, str) and text.isdecimal() else text


class NvidiaSettings(ServedSettings):
    """NVIDIA cards: keys of HAMi's ``nvidia`` section with HAMi's defaults, then the flags of its plugin, then ours."""

    plain: ClassVar[Way] = Way.ENVVAR
    served_ways: ClassVar[frozenset[Way]] = frozenset(Way) - {Way.DEVICE_SPECS}
    restart: ClassVar[frozenset[str]] = frozenset({"nvmlLibrary", "containerDriverRoot"})

    environment: ClassVar[Mapping[str, str]] = {
        "DEVICE_LIST_STRATEGY": "deviceListStrategy",
        "MIG_STRATEGY": "migStrategy",
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
    helm: ClassVar[Mapping[str, str]] = {
        "splitCount": "deviceSplitCount",
        "memoryScaling": "deviceMemoryScaling",
        "coreScaling": "deviceCoreScaling",
        "driverRoot": "nvidiaDriverRoot",
        "migStrategy": "migStrategy",
    }
    fixed: ClassVar[Mapping[str, Fixed]] = {}
    node_config: ClassVar[Mapping[str, str]] = {
        "operatingmode": "operatingMode",
        "migmode": "migMode",
        "devicesplitcount": "deviceSplitCount",
        "devicememoryscaling": "deviceMemoryScaling",
        "devicecorescaling": "deviceCoreScaling",
        "preconfigureddevicememory": "preConfiguredDeviceMemory",
        "libcudaloglevel": "libCudaLogLevel",
        "enablenumatopology": "enableNumaTopology",
        "filterdevices": "filterDevices",
    }

    resource_count_name: ResourceName = setting(
        "resourceCountName", "nvidia.com/gpu", "Resource that the kubelet counts."
    )
    device_split_count: int = setting("deviceSplitCount", 10, "How many containers may share a card.", ge=1, le=1000)

    resource_memory_name: ResourceName = setting("resourceMemoryName", "nvidia.com/gpumem", "MiB of each card.")
    resource_memory_percentage_name: ResourceName = setting(
        "resourceMemoryPercentageName", "nvidia.com/gpumem-percentage", "Percent of each card's memory."
    )
    device_memory_scaling: Scaling = setting(
        "deviceMemoryScaling", 1.0, "Memory on offer, as a multiple of what the card has; above 1 oversubscribes."
    )
    pre_configured_device_memory: int = setting(
        "preConfiguredDeviceMemory",
        0,
        "MiB of a card whose driver cannot tell, as of unified-memory parts. 0: it is not offered.",
        ge=0,
        le=4 * 1024 * 1024,
    )

    resource_core_name: ResourceName = setting(
        "resourceCoreName", "nvidia.com/gpucores", "Percent of each card's cores."
    )
    device_core_scaling: Scaling = setting("deviceCoreScaling", 1.0, "Cores on offer, as a multiple of the card.")
    disable_core_limit: bool = setting("disableCoreLimit", False, "Tell HAMi-core not to limit cores at all.")

    resource_priority_name: ResourceName = setting("resourcePriorityName", "nvidia.com/priority", "Task priority.")
    enable_numa_topology: bool = setting("enableNumaTopology", False, "Give the kubelet each card's NUMA node.")
    lib_cuda_log_level: Annotated[Literal[0, 1, 2, 3, 4] | None, BeforeValidator(_number)] = setting(
        "libCudaLogLevel",
        1,
        "Log level of HAMi-core in containers: 0 and 1 errors, 2 warnings, 3 info, 4 debug. Empty: its own default.",
    )
    filter_devices: FilterDevices = setting("filterDevices", FilterDevices(), "Cards to leave out.")
    operating_mode: Literal["hami-core", "mig", "mps"] = setting(
        "operatingMode",
        "hami-core",
        "How cards are shared. mig: cards in MIG mode are cut for containers, as pods' annotations place them; "
        "others are unhealthy. mps is registered as such and injects as hami-core does.",
    )

    cut_devices: CutDevices = setting(
        "cutDevices",
        CutDevices(),
        "Which cards operatingMode mig concerns; all where none is named. The others are shared as with hami-core, or "
        "with migStrategy mixed, if they are in MIG mode, served by their instances.",
    )
    mig_strategy: Strategy = setting(
        "migStrategy",
        "none",
        "How MIG instances are served that exist. none: not at all; a card in MIG mode is unhealthy. single: all cards "
        "are cut into instances of one profile, and `resourceCountName` counts these. mixed: each profile is a "
        "resource, such as nvidia.com/mig-1g.5gb, and cards that are not in MIG mode are shared as ever.",
    )

    mig_mode: Literal["keep", "enabled", "disabled"] = setting(
        "migMode",
        "keep",
        "Whether the daemon switches cards' MIG mode. enabled: on, for operatingMode mig. disabled: off, to use cards "
        "whole again. A card is switched while no pod, process or instance has it, and other tools such as DCGM do "
        "not; one that needs a reset for it waits for that. keep: never.",
    )

    compute_mode: Literal["Default", "ExclusiveProcess"] = setting(
        "computeMode",
        "Default",
        "The compute mode that cards are switched to. Default leaves them as they are. ExclusiveProcess, one process "
        "at a time on a card, needs `deviceSplitCount: 1`, and CAP_SYS_ADMIN unless the cards are in it already.",
    )

    process_usage: bool = setting(
        "processUsage",
        False,
        "Also show what containers use of their cards by the driver's list of processes, which no container can "
        "forge: each process's cgroup names its pod. The daemon then needs the host's process ids (the chart sets "
        "`hostPID`).",
    )

    device_list_strategy: Annotated[tuple[Way | Literal["auto"], ...], BeforeValidator(listed)] = setting(
        "deviceListStrategy",
        (Way.ENVVAR,),
        "How a container receives its cards; `auto` looks at what this node's container runtime can do.",
        min_length=1,
    )
    cdi: NvidiaCdi = Field(default_factory=NvidiaCdi, description="CDI names and specs.")
    pass_device_specs: bool = setting("passDeviceSpecs", False, "Hand the cards' device nodes to the kubelet too.")
    gdrcopy_enabled: bool = setting("gdrcopyEnabled", False, "Ask the runtime for GDRCopy.")
    gds_enabled: bool = setting("gdsEnabled", False, "Ask the runtime for GPUDirect Storage.")
    mofed_enabled: bool = setting("mofedEnabled", False, "Ask the runtime for MOFED.")
    nvidia_driver_root: Path = setting("nvidiaDriverRoot", Path("/"), "Root of the driver installation on the host.")
    nvidia_dev_root: Path | None = setting(
        "nvidiaDevRoot", None, "Host directory that holds dev/nvidia*. Empty: nvidiaDriverRoot."
    )
    container_driver_root: Path = setting(
        "containerDriverRoot",
        Path("/driver-root"),
        "Where this process sees nvidiaDriverRoot; searched for the driver library.",
    )

    nvidia_cdi_hook_path: Path | None = setting(
        "nvidiaCdiHookPath",
        None,
        "nvidia-cdi-hook or nvidia-ctk on the host, for CDI. Empty: looked for in the usual places.",
    )

    nvml_library: Path | None = setting(
        "nvmlLibrary", None, "Driver library to load. Empty: the loader's libnvidia-ml.so.1."
    )
    sysfs_root: Path | None = setting("sysfsRoot", None, "Another place than /sys.")
    proc_root: Path | None = setting("procRoot", None, "Another place than /proc.")
    dev_root: Path | None = setting(
        "devRoot", None, "Another place than /dev; outranks nvidiaDevRoot. For simulations."
    )
    libvgpu_version: str = setting(
        "libvgpuVersion",
        "v2.10.0",
        "Mount libvgpu.so.<version> where the host has it, else libvgpu.so.",
        pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$|^$",
    )
    healthchecks: HealthChecks = Field(HealthChecks(), description="Which XIDs count.")

    default_memory: int = setting("defaultMemory", 0, _SCHEDULER, ge=0)
    default_cores: int = setting("defaultCores", 0, _SCHEDULER, ge=0, le=100)
    default_gpu_num: int = setting("defaultGPUNum", 1, _SCHEDULER, ge=0)
    memory_factor: int = setting("memoryFactor", 1, _SCHEDULER, ge=1)
    overwrite_env: bool = setting("overwriteEnv", False, _SCHEDULER)
    gpu_core_policy: Literal["default", "force", "disable"] = setting("gpuCorePolicy", "default", _SCHEDULER)
    runtime_class_name: str = setting("runtimeClassName", "", _SCHEDULER)
    mig_profile_allowlist: tuple[MigProfiles, ...] = setting(
        "migProfileAllowlist",
        (),
        "Which profiles cards may be cut into in operating mode mig, by parts of "
        "the model's name: those of the first entry that fits. Empty: all without extensions such as +me.",
    )
    known_mig_geometries: tuple[Any, ...] = setting(
        "knownMigGeometries", (), "HAMi 2.9 and older; accepted and not used."
    )

    @field_validator("compute_mode", mode="before")
    @classmethod
    def _settable_mode(cls, value: object) -> object:
        if value == "ExclusiveThread":
            raise ValueError("NVIDIA's exclusive-thread mode was removed with CUDA 8; choose ExclusiveProcess")
        if value == "Prohibited":
            raise ValueError("no program could use a card; leave cards out with filterDevices")
        return value

    @model_validator(mode="after")
    def _cut_one_way(self) -> NvidiaSettings:
        if self.operating_mode == "mig" and not self.cut_devices.some and self.mig_strategy != "none":
            raise ValueError(
                "operatingMode mig makes instances as pods come; set migStrategy to none with it, or name the cards "
                "that it concerns in cutDevices"
            )
        if self.operating_mode == "mig" and self.mig_strategy == "single":
            raise ValueError(
                "migStrategy single counts instances as cards; with operatingMode mig and cutDevices, set mixed"
            )
        if self.operating_mode != "mig" and self.cut_devices.some:
            raise ValueError(
                f"cutDevices names cards for operatingMode mig, and operatingMode is {self.operating_mode}"
            )
        return self

    @model_validator(mode="after")
    def _switched_for_a_use(self) -> NvidiaSettings:
        if self.mig_mode == "enabled" and self.operating_mode != "mig":
            raise ValueError(
                f"migMode enabled switches cards for operatingMode mig, and operatingMode is {self.operating_mode}; "
                "for one node of many, set operatingmode or migmode in its node configuration"
            )
        if self.mig_mode == "disabled" and (self.operating_mode == "mig" or self.mig_strategy != "none"):
            raise ValueError(
                "migMode disabled uses cards whole, and "
                + ("operatingMode is mig" if self.operating_mode == "mig" else f"migStrategy is {self.mig_strategy}")
            )
        return self

    @model_validator(mode="after")
    def _unshared_if_exclusive(self) -> NvidiaSettings:
        if self.compute_mode == "ExclusiveProcess" and self.device_split_count > 1:
            raise ValueError(
                "with computeMode ExclusiveProcess one process may use a card at a time, and deviceSplitCount is "
                f"{self.device_split_count}; set it to 1, or leave computeMode at Default"
            )
        return self

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

    def mode_of(self, *, uuid: str, index: int) -> str:
        """How this card is shared."""
        cut = self.operating_mode == "mig" and self.cut_devices.names(uuid=uuid, index=index)
        return self.operating_mode if cut or self.operating_mode != "mig" else "hami-core"

    @property
    def cdi_generator(self) -> str:
        return self.cdi.generator

    def device_node(self, name: str) -> Path:
        """Host path of a device node, such as ``nvidia0``."""
        folder = self.dev_root or (self.nvidia_dev_root or self.nvidia_driver_root) / "dev"
        return folder / name
