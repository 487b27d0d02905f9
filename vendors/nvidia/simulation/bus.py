"""A PCI address, and the ways to write it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """A PCI address, from the form that sysfs uses (``0000:1b:00.0``)."""

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Bus:
        """ValueError names a text that is no PCI address."""
        try:
            domain, bus, rest = text.split(":")
            slot, function = rest.split(".")
            return cls(domain=int(domain, 16), bus=int(bus, 16), slot=int(slot, 16), function=int(function, 16))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a PCI address such as 0000:1b:00.0") from error

    @property
    def tail(self) -> str:
        return f"{self.bus:02X}:{self.slot:02X}.{self.function:X}"

    @property
    def sysfs(self) -> str:
        return f"{self.domain:04x}:{self.tail.lower()}"
