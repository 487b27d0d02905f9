"""Many numbers in one: fields of a long integer, which one operation of the interpreter adds, or compares, all at once.

The highest bit of each field stays clear. Set in the one of two integers before the other is taken away, it survives
where a field of the first is not less, and no field borrows from its neighbour.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_WORDS = {32: "I", 64: "Q"}
"""Widths that ``struct`` knows."""


class Fields:
    """``count`` (at least 1) fields for numbers of at most ``bits`` bits. The first number stands lowest."""

    def __init__(self, count: int, bits: int) -> None:
        self.count = count
        self.width = next((width for width in _WORDS if bits < width), (bits + 8) // 8 * 8)
        self.ones = ((1 << count * self.width) - 1) // ((1 << self.width) - 1)
        self.guard = 1 << self.width - 1
        self._rounds: list[tuple[int, int, int]] = []
        while count > 1:
            count = (count + 1) // 2
            half = (1 << count * self.width) - 1
            self._rounds.append((count * self.width, half, self.guard * (self.ones & half)))

    def packed(self, numbers: Sequence[int]) -> int:
        if word := _WORDS.get(self.width):
            return int.from_bytes(struct.pack(f"<{len(numbers)}{word}", *numbers), "little")
        return int.from_bytes(b"".join(number.to_bytes(self.width // 8, "little") for number in numbers), "little")

    def unpacked(self, fields: int) -> Sequence[int]:
        size = self.width // 8
        data = fields.to_bytes(self.count * size, "little")
        if word := _WORDS.get(self.width):
            return struct.unpack(f"<{self.count}{word}", data)
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]

    def highest(self, fields: int) -> int:
        """The largest number of all: one half against the other, until one is left."""
        shift = self.width - 1
        for cut, half, guards in self._rounds:
            other = fields >> cut
            excess = (fields & half | guards) - other
            ahead = excess & guards
            fields = other + (excess & ahead - (ahead >> shift))
        return fields
