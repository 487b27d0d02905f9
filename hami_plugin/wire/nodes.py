"""The register and score annotations of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A MIG profile that a card can be cut into. ``memory`` in MiB, ``placements`` as (start, size)."""

    name: str
    memory: int
    cores: int
    slices: int
    placements: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device in the register annotation. ``devmem`` in MiB, ``devcore`` in percent."""

    id: str
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    health: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    vendor: str = ""
    custom: Mapping[str, Any] | None = None
