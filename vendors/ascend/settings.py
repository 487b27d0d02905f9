"""The ``vnpus`` section: HAMi's keys with the chips of its chart, and where this node's driver is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from hami_plugin.config.settings import AbsolutePath, Section
from hami_plugin.config.vendors import AS_IT_IS, Fixed, ResourceName, TreeSettings, listed, setting
from hami_plugin.model.delivery import Way
from hami_plugin.sdk import Hardware

NPUS = Hardware(title="NPU", vendors=("19e5",), kinds=("1200",), module="drv_davinci")
"""Huawei's network cards are of another class."""


class NodeSettings(TreeSettings):
    """The driver's files, and how containers receive NPUs.

    HAMi leaves the devices to Ascend's own container runtime, which cuts an NPU by a template too, and so does the
    default.
    """

    cdi_class: ClassVar[str] = "npu"
    cdi_class_help: ClassVar[str] = (
        "Class part of the devices' CDI names; the chip's name follows it, as in `npu-910b3`."
    )

    plain: ClassVar[Way] = Way.ENVVAR
    served_ways: ClassVar[frozenset[Way]] = frozenset({Way.ENVVAR, Way.DEVICE_SPECS, Way.CDI_ANNOTATIONS, Way.CDI_CRI})

    device_list_strategy: Annotated[tuple[Way | Literal["auto"], ...], BeforeValidator(listed)] = Field(
        (Way.ENVVAR,),
        min_length=1,
        alias="deviceListStrategy",
        description="How a container receives its NPUs. `envvar` leaves it to Ascend's container runtime, which "
        "cuts an NPU by a template when the container is created; with the others the daemon cuts it, through DCMI.",
    )
    cut_for_claims: bool = Field(
        False,
        alias="cutForClaims",
        description="With `frontEnd: dra`: NPUs are cut by templates too for ResourceClaims, through DCMI, which "
        "needs Kubernetes 1.36. Otherwise claims have whole NPUs.",
    )
    dcmi_library: AbsolutePath | None = Field(
        None, alias="dcmiLibrary", description="The driver's libdcmi.so. Empty: the loader's, else the driver's own."
    )
    driver_root: AbsolutePath = Field(
        Path("/"), alias="driverRoot", description="Root of the host's file tree that the driver is installed in."
    )
    container_driver_root: AbsolutePath | None = Field(
        None, alias="containerDriverRoot", description="Where this process sees driverRoot. Empty: there itself."
    )

    @property
    def cuts(self) -> bool:
        """Whether NPUs are cut here, and not by Ascend's container runtime."""
        return self.delivery.ways != (Way.ENVVAR,) and (self.front_end != "dra" or self.cut_for_claims)

    def seen(self, path: str) -> Path:
        """A path of the driver's root as this process reaches it."""
        return (self.container_driver_root or self.driver_root) / path.lstrip("/")

    def on_host(self, path: str) -> str:
        """A path of the driver's root as the host's runtime names it."""
        return str(self.driver_root / path.lstrip("/"))


_SIXTEENTHS = (("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0), ("vir08", 8738, 8, 0), ("vir16", 17476, 16, 0))
_EIGHTHS = (("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1), ("vir12_3c_32g", 32768, 12, 3))
_QUARTERS = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
_SMALL_QUARTERS = (("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3))
_SEVENTHS = (("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4))

CHIPS = {
    "Ascend910A": ("910A", 32768, 32768, 30, 0, _SIXTEENTHS),
    "Ascend910B2": ("910B2", 65536, 65536, 24, 6, _EIGHTHS),
    "Ascend910B3": ("910B3", 65536, 65536, 20, 7, _QUARTERS),
    "Ascend910B4-1": ("910B4-1", 65536, 65536, 20, 7, _QUARTERS),
    "Ascend910B4": ("910B4", 32768, 32768, 20, 7, _SMALL_QUARTERS),
    "Ascend310P": ("310P3", 21527, 24576, 8, 7, _SEVENTHS),
    "Ascend910C": ("Ascend910", 65536, 65536, 20, 7, _QUARTERS),
}
"""By HAMi's name: the driver's name, MiB that can be had and that there are, AI cores and CPUs, templates."""

MODULES = "Ascend910C"
"""Two of these chips are soldered to one module."""


class Template(Section):
    """A part that a chip can be cut into."""

    name: str = setting("name", ..., "The template's name, as the driver knows it.")
    memory: int = setting("memory", ..., "MiB of the part.", ge=1)
    ai_cores: int = setting("aiCore", 0, "AI cores of the part.", ge=0)
    ai_cpus: int = setting("aiCPU", 0, "AI CPUs of the part.", ge=0)


class Chip(Section):
    """One entry of ``configs``. Without ``memoryAllocatable`` it is HAMi's chip of that name, but for what it says."""

    device_type: str = setting("commonWord", ..., "HAMi's name for the chip, used in all annotations.", min_length=1)
    driver_name: str = setting("chipName", "", "The driver's name for the chip.")
    count: ResourceName = setting("resourceName", ..., "Number of NPUs.")
    memory: ResourceName = setting("resourceMemoryName", ..., "Memory of each NPU.")
    cores: ResourceName | Literal[""] = setting("resourceCoreName", "", "Percent of each NPU's cores, for hami-core.")
    memory_allocatable: int = setting("memoryAllocatable", ..., "MiB that containers can have of an NPU.", ge=1)
    memory_capacity: int = setting("memoryCapacity", ..., "MiB that an NPU has.", ge=1)
    memory_factor: int = setting("memoryFactor", 1, "MiB that one unit of memory stands for.", ge=0)
    ai_cores: int = setting("aiCore", 0, "AI cores of an NPU.", ge=0)
    ai_cpus: int = setting("aiCPU", 0, "AI CPUs of an NPU.", ge=0)
    runtime_class: str = setting("runtimeClassName", "", "Runtime class of pods that use the chip.")
    overwrite_env: bool = setting("overwriteEnv", False, "Hide all NPUs from containers that ask for none.")
    super_pod: bool = setting("superPod", False, "Grant whole modules only.")
    templates: tuple[Template, ...] = setting("templates", (), "What an NPU can be cut into.")

    @model_validator(mode="before")
    @classmethod
    def _as_known(cls, written: Any) -> Any:
        short = isinstance(written, Mapping) and "memoryAllocatable" not in written
        return {**_known(str(written.get("commonWord"))), **written} if short else written

    def template(self, mib: int) -> Template | None:
        """The smallest that holds so much; None for more than the largest holds."""
        return min((one for one in self.templates if one.memory >= mib), key=lambda one: one.memory, default=None)

    def cut(self, mib: int) -> int | None:
        """MiB that a container gets who asks for ``mib``: a template's, or the whole NPU's; None for more than it has.

        Up to the NPU's capacity is meant as the whole of it, though containers cannot have quite as much.
        """
        if template := self.template(mib):
            return template.memory
        return self.memory_allocatable if mib <= self.memory_capacity else None


def shares(allocatable: int, templates: Iterable[int]) -> int:
    """As many containers as a chip has of its smallest template, in MiB; one where it cannot be cut."""
    return max(1, allocatable // min(templates, default=allocatable))


def _known(device_type: str) -> dict[str, Any]:
    if device_type not in CHIPS:
        return {}
    driver_name, allocatable, capacity, cores, cpus, templates = CHIPS[device_type]
    keys = ("name", "memory", "aiCore", "aiCPU")
    return {
        "chipName": driver_name,
        "resourceName": f"huawei.com/{device_type}",
        "resourceMemoryName": f"huawei.com/{device_type}-memory",
        "resourceCoreName": f"huawei.com/{device_type}-core",
        "memoryAllocatable": allocatable,
        "memoryCapacity": capacity,
        "aiCore": cores,
        "aiCPU": cpus,
        "superPod": device_type == MODULES,
        "templates": [dict(zip(keys, template, strict=True)) for template in templates],
    }


class AscendSettings(NodeSettings):
    """HAMi's ``vnpus`` section, with the chips of its chart."""

    hami_section: ClassVar[str] = "vnpus"
    fixed: ClassVar[Mapping[str, Fixed]] = {
        **AS_IT_IS,
        "splitCount": Fixed(
            served="an NPU goes to as many containers as it has of its smallest template: "
            + ", ".join(
                f"{shares(known[1], (one[1] for one in known[-1]))} on {device_type}"
                for device_type, known in CHIPS.items()
            )
        ),
    }

    soft: bool = setting("hamiVnpuCore", False, "Nodes serve hami-core mode unless their annotation says otherwise.")
    chips: tuple[Chip, ...] = Field(
        default_factory=lambda: tuple(Chip.model_validate({"commonWord": device_type}) for device_type in CHIPS),
        alias="configs",
        description="The chips. Of one in HAMi's chart, `commonWord` and what differs are enough.",
    )
