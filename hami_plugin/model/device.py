"""What a node has: devices with the ids of their shares, their health, and the snapshot that every reader compares.

Links say how well two devices are connected: one symmetric link per pair, and what was odd about the measurement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One pair's connection. ``score`` is HAMi's number, ``label`` what people call it (``NV18``, ``SYS``)."""

    score: int
    label: str
    level: str = ""
    lanes: int = 0


class PairScores(Protocol):
    """What a choice of devices asks of their links."""

    def scores(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """All pairs within ``uuids``: the first with each that follows, then the second, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All pairs of one node. Keys are ``(a, b)`` with ``a < b``; a pair that is absent scores 0."""

    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    asymmetric: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    def between(self, a: str, b: str) -> Link | None:
        return self.pairs.get((a, b) if a < b else (b, a))

    def score(self, a: str, b: str) -> int:
        link = self.between(a, b)
        return link.score if link else 0

    def scores(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """As ``PairScores`` says."""
        pairs = self.pairs
        found = [pairs.get((a, b) if a < b else (b, a)) for i, a in enumerate(uuids, 1) for b in uuids[i:]]
        return tuple([link.score if link else 0 for link in found])

    def total(self, uuids: Sequence[str]) -> int:
        """The sum over all pairs within ``uuids``."""
        return sum(self.scores(uuids))


NO_LINKS = Links()

LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100


def scored(level: str, lanes: int, fabric: str) -> Link:
    """HAMi's score of a pair: its level on the bus, plus 100 for each direct link of the fabric, as ``XGMI``."""
    score = LEVEL_SCORES.get(level, 0) + LANE_SCORE * lanes
    return Link(score=score, label=f"{fabric}{lanes}" if lanes else level, level=level, lanes=lanes)


def symmetric(directed: Mapping[tuple[str, str], Link], problems: Sequence[str] = ()) -> Links:
    """Fold both directions of each pair into one. The worse one counts, and the pair is named in ``asymmetric``.

    A direction that could not be measured leaves the other one, and names the pair too.
    """
    pairs: dict[tuple[str, str], Link] = {}
    odd: set[tuple[str, str]] = set()
    for (a, b), link in sorted(directed.items()):
        key = (a, b) if a < b else (b, a)
        back = directed.get((b, a))
        if back is None or back.score != link.score:
            odd.add(key)
        pairs[key] = link if back is None or link.score <= back.score else back
    return Links(pairs=pairs, asymmetric=tuple(sorted(odd)), problems=tuple(problems))


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
