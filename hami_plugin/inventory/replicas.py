"""A physical device and the ids under which the kubelet counts its shares: ``<uuid>-<k>``, or ``<name>::<k>``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UUID_DASHES = 5


def replica_id(uuid: str, number: int) -> str:
    """Where a device's name is no UUID behind a word, a dash would not tell the name's end from the number."""
    return f"{uuid}-{number}" if uuid.count("-") == UUID_DASHES else f"{uuid}::{number}"


def replica_ids(uuid: str, count: int) -> tuple[str, ...]:
    prefix = replica_id(uuid, 0)[:-1]
    return tuple(f"{prefix}{number}" for number in range(count))


def is_replica(replica: str, uuid: str, count: int) -> bool:
    """Whether ``replica`` is among ``replica_ids(uuid, count)``."""
    number = replica.removeprefix(uuid).lstrip("-:")
    return number.isdecimal() and len(number) < 10 and int(number) < count and replica == replica_id(uuid, int(number))


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
