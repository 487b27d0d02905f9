"""How the node's part of the vendor is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import TreeSettings, listed
from hami_plugin.model.delivery import Way


class NodeSettings(TreeSettings):
    """The driver's files, and how containers receive NPUs.

    HAMi leaves the devices to Ascend's own container runtime, and so does the default: only that runtime cuts an NPU by
    a template.
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
        description="How a container receives its NPUs. `envvar` leaves it to Ascend's container runtime, the only one "
        "that cuts an NPU by a template; with the others, whole NPUs and shares of hami-core mode are served.",
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

    def seen(self, path: str) -> Path:
        """A path of the driver's root as this process reaches it."""
        return (self.container_driver_root or self.driver_root) / path.lstrip("/")

    def on_host(self, path: str) -> str:
        """A path of the driver's root as the host's runtime names it."""
        return str(self.driver_root / path.lstrip("/"))
