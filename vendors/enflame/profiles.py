"""DRS profiles: the partitions that a card can be cut into, and the smallest one that satisfies a request.

An agent names them by slices and memory, as ``3g.24gb``, and all cards of a node have the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hami_plugin.scheduler.engine.devices import WHOLE, DeviceState
from hami_plugin.scheduler.engine.requests import INT32_MAX

MIB_PER_GB = 1024
MOST = INT32_MAX // MIB_PER_GB
"""So many slices or GB no card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A partition: ``memory`` in GB, ``cores`` in percent of a card, rounded up. ``id`` is the agent's word for it."""

    name: str
    id: str
    slices: int
    memory: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Exactly so many ``slices``; else at least so much ``memory``, of which the unit shows only beside a profile."""

    slices: int = 0
    memory: int = 0


def offered(states: Sequence[DeviceState]) -> tuple[Profile, ...]:
    """The profiles of these cards, the smallest first."""
    ids = {name: str(one) for state in states for name, one in (state.notes.get("profiles") or {}).items()}
    sizes = {name: size(name) for name in sorted(ids) if all(0 < part <= MOST for part in size(name))}
    most = max((number(state.notes.get("maxSlice")) for state in states), default=0)
    most = most if most > 0 else max((slices for slices, _ in sizes.values()), default=0)
    found = [
        Profile(name=name, id=ids[name], slices=slices, memory=memory, cores=-(-WHOLE * slices // most))
        for name, (slices, memory) in sizes.items()
    ]
    return tuple(sorted(found, key=lambda profile: (profile.slices, profile.memory)))


def chosen(wanted: Wanted, cores: int, profiles: Sequence[Profile]) -> Profile | None:
    """The smallest profile that satisfies a request; None when none does."""
    if wanted.slices:
        return next((profile for profile in profiles if profile.slices == wanted.slices), None)
    memory = in_gb(wanted.memory, profiles)
    return next((profile for profile in profiles if profile.memory >= memory and profile.cores >= cores), None)


def in_gb(memory: int, profiles: Sequence[Profile]) -> int:
    """An amount of memory of which only the size tells the unit: more than two of the largest profiles are MiB."""
    largest = profiles[-1].memory if profiles else 0
    return -(-memory // MIB_PER_GB) if largest and memory > 2 * largest else memory


def size(name: str) -> tuple[int, int]:
    """Slices and GB of a profile by its name; 0 for what cannot be read."""
    slices, dot, rest = name.strip().lower().partition(".")
    if not dot:
        return 0, 0
    count = number(slices.removesuffix("g"))
    return (count, number(rest.split(".")[0].removesuffix("gb"))) if count else (0, 0)


def number(value: object) -> int:
    """A number as agents write it, also as text or with a fraction that does not count; 0 when it is none."""
    match value:
        case bool():
            return 0
        case int() | float() if abs(value) <= INT32_MAX:
            return int(value)
        case str() if re.fullmatch(r"[+-]?[0-9]{1,10}", value.strip()) and abs(int(value)) <= INT32_MAX:
            return int(value)
        case _:
            return 0
