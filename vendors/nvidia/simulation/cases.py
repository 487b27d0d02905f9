"""One injection of a fault, and the faults that are one word of a device's record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vendors.nvidia.simulation.layout import Device
from vendors.nvidia.simulation.state import State

Value = int | str

NOTHING: Final = (0, "", "0")
"""Ways to give no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One injection: the devices it is meant for, which are all of them when none was named (``everywhere``)."""

    state: State
    targets: tuple[int, ...]
    everywhere: bool
    value: Value

    @property
    def devices(self) -> list[Device]:
        return [self.state.devices[index] for index in self.targets]


def number_of(value: Value, what: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """The value as a number within bounds; ValueError says ``what`` it should have been."""
    try:
        number = int(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a number: {what}") from error
    if not low <= number <= high:
        raise ValueError(f"{number} is not between {low} and {high}: {what}")
    return number


def sets(field: str, number: int) -> Callable[[Case], None]:
    """A fault that is one word of the device's record."""

    def change(case: Case) -> None:
        for device in case.devices:
            setattr(device, field, number)

    return change


def takes(field: str, what: str, low: int = 0, high: int = 2**32 - 1, scale: int = 1) -> Callable[[Case], None]:
    """A fault whose value is written to the device's record."""

    def change(case: Case) -> None:
        number = number_of(case.value, what, low, high) * scale
        for device in case.devices:
            setattr(device, field, number)

    return change
