"""Which slices of which cards a scheduler chose for a pod (HAMi 2.10), and what the node made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_plugin.errors import WireError
from hami_plugin.protocol.grammar import (
    INT32_MAX,
    MAX_POD_BYTES,
    from_json,
    in_range,
    int_of,
    object_of,
    objects,
    printable,
    text_of,
    to_json,
)

_WHAT = "MIG allocations"
_RUNTIME = ("migUUID", "gpuInstanceID", "computeInstanceID")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A slice that exists: the driver's names for it. Ids start at 0."""

    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """One slice for one container. ``container`` counts init containers first; ``instance`` is the node's to fill in.

    ``start`` and ``size`` are the placement, in memory slices of the card.
    """

    container: int
    device: int
    uuid: str
    profile: str
    start: int
    size: int
    instance: MigInstance | None = None

    @property
    def complete(self) -> bool:
        """Whether it says which card, which profile, and where."""
        return bool(self.uuid and self.profile and self.size > 0)


def decode_mig(text: str) -> tuple[MigAllocation, ...]:
    """Read the annotation, in its order. An empty text holds nothing; one bad entry spoils the whole, as for HAMi."""
    if not text:
        return ()
    items = objects(from_json(text, _WHAT, MAX_POD_BYTES), _WHAT)
    return _unique(tuple(_allocation(item, f"{_WHAT}[{position}]") for position, item in enumerate(items)))


def encode_mig(allocations: Sequence[MigAllocation]) -> str:
    """The annotation's text, in HAMi's key order; empty when there is nothing to say."""
    return to_json([_members(item) for item in _unique(allocations)], _WHAT) if allocations else ""


def _unique(allocations: Sequence[MigAllocation]) -> tuple[MigAllocation, ...]:
    seen: set[tuple[int, int]] = set()
    for item in allocations:
        key = (item.container, item.device)
        if key in seen:
            raise WireError(f"{_WHAT}: container {item.container} device {item.device} appears twice")
        seen.add(key)
    return tuple(allocations)


def _allocation(item: Mapping[str, Any], where: str) -> MigAllocation:
    placement = object_of(item, "placement", where) or {}
    allocation = MigAllocation(
        container=int_of(item, "containerIndex", where, 0),
        device=int_of(item, "deviceIndex", where, 0),
        uuid=text_of(item, "gpuUUID", where),
        profile=text_of(item, "profile", where),
        start=int_of(placement, "start", where, 0),
        size=int_of(placement, "size", where, 0),
        instance=_instance(item, where),
    )
    if not allocation.complete:
        raise WireError(f"{where}: gpuUUID, profile and a placement of some size are needed")
    return allocation


def _instance(item: Mapping[str, Any], where: str) -> MigInstance | None:
    # An empty UUID counts as absent, an id of 0 does not: the driver's first instance has it.
    present = [bool(item.get("migUUID")), *(item.get(key) is not None for key in _RUNTIME[1:])]
    if not any(present):
        return None
    if not all(present):
        raise WireError(f"{where}: {', '.join(_RUNTIME)} must be there together, or not at all")
    return MigInstance(
        uuid=text_of(item, "migUUID", where),
        gpu_instance=int_of(item, "gpuInstanceID", where, 0),
        compute_instance=int_of(item, "computeInstanceID", where, 0),
    )


def _members(item: MigAllocation) -> dict[str, Any]:
    where = f"{_WHAT}: container {item.container} device {item.device}"
    if not item.complete:
        raise WireError(f"{where}: card, profile and a placement of some size are needed")
    members: dict[str, Any] = {
        "containerIndex": _number(item.container, where),
        "deviceIndex": _number(item.device, where),
        "gpuUUID": printable(item.uuid, where),
        "profile": printable(item.profile, where),
        "placement": {"start": _number(item.start, where), "size": _number(item.size, where)},
    }
    if item.instance:
        instance = item.instance
        if not instance.uuid:
            raise WireError(f"{where}: an instance without UUID")
        ids = (instance.gpu_instance, instance.compute_instance)
        members |= zip(_RUNTIME, (printable(instance.uuid, where), *(_number(n, where) for n in ids)), strict=True)
    return members


def _number(value: int, where: str) -> int:
    return in_range(value, where, 0, INT32_MAX)
