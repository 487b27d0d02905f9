"""What a node has: devices with the ids of their shares, their health, and the snapshot that every reader compares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from hami_plugin.model.links import NO_LINKS, Links

MAX_DEVICES = 1024
"""Of one node."""


class Health(StrEnum):
    """A device's health, and whether it is ``offered``. A suspect device has failed one look and gets another."""

    offered: bool

    HEALTHY = "healthy", True
    SUSPECT = "suspect", True
    UNHEALTHY = "unhealthy", False
    PROBATION = "probation", False

    def __new__(cls, value: str, offered: bool = False) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.offered = offered
        return member


class Action(StrEnum):
    """What a fault asks for, mildest first."""

    IGNORE = "ignore"
    DRAIN = "drain"
    RESET = "reset"
    REBOOT = "reboot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong with a device. ``reason`` is one CamelCase name for metrics and Events."""

    reason: str
    message: str = ""
    action: Action = Action.DRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical device, or a partition of one. ``family`` is its device type, ``memory`` is in MiB, ``cores`` in
    percent of the card.

    ``place`` is where a partition is, as ``<card's UUID>/<place on it>``, ``index`` its card's, and ``part`` its number
    on the card. Partitions are made and unmade by software: one that is not listed any more is no fault, and whatever
    is made at the same place has the same health. The kubelet knows a partition by its UUID alone.

    ``grave``: its fault asks for a reset or a reboot.
    """

    uuid: str
    family: str
    index: int
    model: str
    memory: int
    cores: int = 100
    minor: int | None = None
    pci: str = ""
    numa: int | None = None
    mode: str = "hami-core"
    health: Health = Health.HEALTHY
    reason: str = ""
    message: str = ""
    traits: object | None = None
    place: str = ""
    part: int = 0
    grave: bool = False

    @property
    def number(self) -> str:
        """How tools number it: ``2``, and ``2:0`` for the first partition of that card."""
        return f"{self.index}:{self.part}" if self.place else str(self.index)

    @property
    def order(self) -> tuple[int, int, str]:
        """By which devices are listed."""
        return self.index, self.part, self.uuid

    @property
    def card(self) -> str:
        """UUID of the card that it is, or is on."""
        return self.place.partition("/")[0] or self.uuid

    def ids(self, count: int) -> tuple[str, ...]:
        """What the kubelet calls ``count`` shares of it."""
        return (self.uuid,) if self.place else replica_ids(self.uuid, count)

    def has_id(self, replica: str, count: int) -> bool:
        """Whether ``replica`` is among ``ids(count)``."""
        return replica == self.uuid if self.place else is_replica(replica, self.uuid, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look at one device showed: the device, and what is wrong with it, if anything."""

    device: Device
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What one look at a driver showed. ``problems`` are cards that answered nothing that could name them.

    ``divided`` are UUIDs of cards that are there, and are no devices while their partitions are.
    """

    sightings: tuple[Sighting, ...]
    problems: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    divided: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The one truth about a driver's devices, ordered by index.

    ``ready`` is False before the first look and while the driver is away; ``reason`` and ``message`` then say why.
    """

    devices: tuple[Device, ...] = ()
    links: Links = NO_LINKS
    ready: bool = False
    reason: str = "NotLookedYet"
    message: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def device(self, uuid: str) -> Device | None:
        return next((device for device in self.devices if device.uuid == uuid), None)

    def of_card(self, uuid: str) -> tuple[Device, ...]:
        """The card of that UUID, or its partitions."""
        return tuple(device for device in self.devices if device.card == uuid)


UUID_DASHES = 5


def replica_id(uuid: str, number: int) -> str:
    """``<uuid>-<k>`` for a type and a UUID (``GPU-…``). Any other name may end like a number, so it gets ``::<k>``."""
    return f"{uuid}-{number}" if uuid.count("-") == UUID_DASHES else f"{uuid}::{number}"


def replica_ids(uuid: str, count: int) -> tuple[str, ...]:
    prefix = replica_id(uuid, 0)[:-1]
    return tuple(f"{prefix}{number}" for number in range(count))


def is_replica(replica: str, uuid: str, count: int) -> bool:
    """Whether ``replica`` is among ``replica_ids(uuid, count)``."""
    begin = f"{uuid}-" if uuid.count("-") == UUID_DASHES else f"{uuid}::"
    number = replica.removeprefix(begin)
    canonical = number.isdecimal() and len(number) < 10 and str(int(number)) == number
    return replica.startswith(begin) and canonical and int(number) < count


def physical_id(replica: str) -> str:
    """The device behind a replica id, as ``<uuid>-<k>`` or ``<uuid>::<k>`` (both are in use)."""
    uuid, separator, number = replica.partition("::")
    if separator:
        return uuid
    uuid, _, number = replica.rpartition("-")
    return uuid if uuid.count("-") == UUID_DASHES and number.isdecimal() else replica


def physical_counts(replicas: Iterable[str]) -> Counter[str]:
    """How many of the ids are of each physical device."""
    return Counter(physical_id(replica) for replica in replicas)


MAX_LABEL_VALUE = 63


def label_value(text: str) -> str:
    """``text`` as the value of a label can be: ``A100-SXM4-40GB`` of ``A100 (SXM4) 40GB``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:MAX_LABEL_VALUE].strip("-_.")


def node_labels(name: str, devices: Iterable[Device]) -> dict[str, str]:
    """``<name>.product``, ``.count`` and ``.memory`` of devices. Where they differ, those of the commonest model."""
    found = list(devices)
    if not found:
        return {}
    ((model, _number),) = Counter(device.model for device in found).most_common(1)
    memory = next(device.memory for device in found if device.model == model)
    return {f"{name}.product": label_value(model), f"{name}.count": str(len(found)), f"{name}.memory": str(memory)}
