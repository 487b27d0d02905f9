"""Virtual DCUs: which part of a card a container has, and the file in which Hygon's library reads it there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from hami_plugin.model.placement import Grant

PIPES = 20
"""How many virtual DCUs a card can have."""
UNITS, PIPE = "units", "pipe"
_WORD = 64

Part = Mapping[str, Any]
"""Notes at a grant: a mask of compute units, and the pipe."""


def part(percent: int, units: int, others: Sequence[Grant]) -> Part:
    """So many of a card's compute units, those that the fewest ``others`` have: none is shared while there is room.

    Without a percentage it is all of them, which takes nothing away from anybody.
    """
    every = (1 << units) - 1
    notes = [other.notes or {} for other in others]
    masks = [mask for note in notes if (mask := int(note.get(UNITS, 0))) != every]
    taken = Counter(unit for mask in masks for unit in range(units) if mask >> unit & 1)
    chosen = sorted(range(units), key=lambda unit: (taken[unit], unit))[: max(1, units * percent // 100)]
    pipes = {note[PIPE] for note in notes if PIPE in note}
    return {
        UNITS: sum(1 << unit for unit in chosen) if percent else every,
        PIPE: next(number for number in count() if number not in pipes),
    }


def number(device: int, own: Part) -> int:
    """The virtual DCU's number on its node."""
    return device * PIPES + int(own[PIPE])


def text(address: str, device: int, own: Part, memory: int) -> str:
    """The file. ``memory`` is in MiB; compute units are two words of 64 bits."""
    mask = int(own[UNITS])
    return (
        f"PciBusId: {address}\n"
        f"cu_mask: 0x{mask & (1 << _WORD) - 1:016x}\n"
        f"cu_mask: 0x{mask >> _WORD:016x}\n"
        f"cu_count: {mask.bit_count()}\n"
        f"mem: {memory} MiB\n"
        f"device_id: {device}\n"
        f"vdev_id: {number(device, own)}\n"
        f"pipe_id: {own[PIPE]}\n"
        "enable: 1\n"
    )
