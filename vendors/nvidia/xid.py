"""NVIDIA's XID numbers: what each means, and what it asks of the card it is about.

The table is data. The six application faults are the ones that NVIDIA's own plugin and HAMi skip; a number that is
not in the table drains the card, as HAMi does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hami_plugin.model.device import Action, Fault

Every = Literal["all"]
Selection = frozenset[int] | Every


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One XID: its meaning in a few words, and the mildest thing that puts the card right."""

    name: str
    action: Action


def _xids(action: Action, names: Mapping[int, str]) -> dict[int, Xid]:
    return {number: Xid(name=name, action=action) for number, name in names.items()}


TABLE: Mapping[int, Xid] = MappingProxyType(
    # The application's own fault, or its clean-up: the card stays usable.
    _xids(
        Action.IGNORE,
        {
            13: "graphics engine exception",
            31: "memory page fault of an application",
            43: "a channel was stopped after an application fault",
            45: "clean-up after an application that ended early",
            68: "video decoder exception",
            109: "context switch timed out",
        },
    )
    | _xids(
        Action.DRAIN,
        {
            32: "corrupt command stream",
            38: "driver firmware error",
            57: "video memory interface could not be programmed",
            58: "video memory interface is unstable",
            69: "graphics engine class error",
            80: "corrupt data was sent to the card",
            92: "many corrected memory errors",
            154: "the card's recovery action changed",
        },
    )
    | _xids(
        Action.RESET,
        {
            48: "uncorrectable memory error",
            61: "internal microcontroller breakpoint",
            62: "internal microcontroller halted",
            63: "memory row or page was marked for replacement",
            64: "marking a memory row or page for replacement failed",
            74: "NVLink error",
            94: "contained uncorrectable memory error",
            95: "uncontained uncorrectable memory error",
            110: "security fault",
            119: "GSP firmware did not answer in time",
            120: "GSP firmware error",
            140: "memory error that could not be recovered",
            143: "card could not be initialised",
        },
    )
    | _xids(Action.REBOOT, {79: "card has fallen off the bus"})
)


def parse_selection(text: str | Iterable[str | int]) -> Selection:
    """Read HAMi's list syntax: numbers with commas between, or ``all`` or ``xids`` for every number.

    ValueError names an element that is neither. (HAMi logs and skips it, and the wish silently does nothing.)
    """
    parts = text.split(",") if isinstance(text, str) else [str(part) for part in text]
    names = [name for name in (part.strip().lower() for part in parts) if name]
    if "all" in names or "xids" in names:
        return "all"
    odd = [name for name in names if not (name.isascii() and name.isdigit() and len(name) <= 9)]
    if odd:
        raise ValueError(f"{odd[0][:32]!r} is not an XID; write numbers with commas between, or 'all'")
    return frozenset(int(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """The table under an operator's two lists. ``enable`` outranks ``disable``, which outranks the table.

    Disabling everything but enabling some leaves those some. (HAMi stops looking altogether.)
    """

    disable: Selection = frozenset()
    enable: Selection = frozenset()

    def action(self, number: int) -> Action:
        listed = TABLE[number].action if number in TABLE else Action.DRAIN
        if _selects(self.enable, number):
            return Action.DRAIN if listed is Action.IGNORE else listed
        return Action.IGNORE if _selects(self.disable, number) else listed

    @property
    def silent(self) -> bool:
        """Whether no XID at all would be acted upon."""
        return self.disable == "all" and not self.enable

    def fault(self, number: int, *, contained: bool = False) -> Fault | None:
        """What the card suffers from after this XID; None when it stays usable.

        ``contained``: what one of its instances suffers from, which has a new chance once its users are gone.
        """
        action = self.action(number)
        if action is Action.IGNORE:
            return None
        if contained and action in (Action.RESET, Action.REBOOT):
            action = Action.DRAIN
        name = TABLE[number].name if number in TABLE else "not in the table of known XIDs"
        return Fault(reason=f"Xid{number}", message=f"XID {number}: {name}", action=action)

    def of_application(self, number: int) -> Fault | None:
        """An application's own fault, which the card survives; None for others, and those that nobody wants to see."""
        if number not in TABLE or self.action(number) is not Action.IGNORE or _selects(self.disable, number):
            return None
        known = TABLE[number]
        if known.action is not Action.IGNORE:
            return None
        return Fault(reason=f"Xid{number}", message=f"XID {number}: {known.name}", action=Action.IGNORE)


CONTAINED = 94


def of_one_instance(number: int) -> bool:
    """Whether the instances that an event names suffer alone. What takes a reset is every instance's, but for memory
    errors that the card has contained.
    """
    return number == CONTAINED or number not in TABLE or TABLE[number].action in (Action.IGNORE, Action.DRAIN)


def _selects(selection: Selection, number: int) -> bool:
    return selection == "all" or number in selection
