"""What a container asks of one family, and a request that means nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """``count`` devices of the family ``word``; ``memory`` in MiB and ``cores`` are of each device.

    ``memory`` outranks ``percent`` where both were given; without either no memory is billed. ``cores`` are in the
    family's unit, 0 for none. ``detail`` is the family's own.
    """

    word: str
    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int = 0
    detail: object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A container asks for an amount that no device can be asked for."""

    resource: str
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.resource}={self.text} {self.why}"


Asked = Demand | Invalid | None
"""A demand; an invalid one; or None when the container does not ask for the family."""
