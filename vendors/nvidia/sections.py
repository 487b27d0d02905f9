"""The sections within NVIDIA's section: cards left out, XIDs that count, MIG profiles, CDI."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from hami_plugin.config.settings import DnsName, Section
from hami_plugin.config.vendors import CdiSettings, listed
from vendors.nvidia.xid import XidPolicy, parse_selection


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
