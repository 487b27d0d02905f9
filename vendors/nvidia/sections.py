"""The sections within NVIDIA's section: cards that are left out, XIDs that count, MIG profiles that are allowed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from hami_plugin.config.settings import Section
from vendors.nvidia.xid import XidPolicy, parse_selection


def listed(value: object) -> object:
    """A comma list, as in HAMi's environment variables, or a YAML list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


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
