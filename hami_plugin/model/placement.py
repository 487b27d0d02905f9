"""Who gets what: grants, and a container's assignment of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hami_plugin.model.device import Device
from hami_plugin.model.views import ContainerView, PodView


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One device's share for one container: ``memory`` in MiB (0 = no limit), ``cores`` in percent (0 = no limit).

    The last three are a scheduler's and are not in the annotation: the device's number, how many of its slots, and
    the family's own notes.
    """

    uuid: str
    device_type: str
    memory: int = 0
    cores: int = 0
    index: int = 0
    slots: int = 1
    notes: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A grant next to the device it is of."""

    grant: Grant
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one container receives. ``shares`` are in the order in which the container sees the devices."""

    pod: PodView
    container: ContainerView
    shares: tuple[Share, ...]
