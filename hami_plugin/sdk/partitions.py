"""Partitions of a card: what a vendor's driver lists, creates and destroys.

The life cycle (`hami_plugin/partitions/`) decides when; a driver acts, and remembers nothing. Every method blocks, is
bounded, and is called on a thread of the card, one at a time. Calls about other cards and a listing may run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from hami_plugin.errors import HamiError


class InUseError(HamiError):
    """Somebody has the partition open: it cannot be destroyed now."""


class NoRoomError(HamiError):
    """The placement is legal and not free, or the card has no room for the profile."""


class UnlistedCardsError(HamiError):
    """Some ``cards`` cannot be listed now, so nothing is known of theirs. ``partitions`` are all of the others."""

    def __init__(self, message: str, cards: Sequence[str], partitions: Sequence[Partition], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cards = tuple(cards)
        self.partitions = tuple(partitions)


Range = tuple[int, int]
"""A card's slices from a first one on, and how many."""
_R = TypeVar("_R", bound=Range)


class Placement(NamedTuple):
    """A ``Range`` with names."""

    start: int
    size: int

    def overlaps(self, other: Range) -> bool:
        return overlaps(self, (other,))


def overlaps(place: Range, others: Iterable[Range]) -> bool:
    """Whether one range has a slice with any other in common."""
    start, size = place
    return any(start < other + length and other < start + size for other, length in others)


def unoccupied(places: Iterable[_R], taken: Sequence[Range]) -> list[_R]:
    """Those of the ranges that nothing is in, in their order."""
    return [place for place in places if not overlaps(place, taken)]


NOWHERE = Placement(start=0, size=0)
"""The placement of every partition of a card on which only sums count. It identifies nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A shape that a card may be cut into. ``memory`` in MiB; ``compute`` in the card's compute slices.

    ``placements`` are the legal ones, whatever exists now, or ``NOWHERE`` alone; ``limit`` is how many a card may have
    at once. ``cores`` is its part of the card's compute in percent, rounded up; 0 where only ``compute`` tells.
    ``sums`` are what else it takes of its card, and how much of that the card has, by a DNS label.
    """

    name: str
    memory: int
    compute: int
    placements: tuple[Placement, ...]
    limit: int
    cores: int = 0
    sums: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Partitions of any size, of cards that have no profiles.

    ``profile`` names one by its percent of the card's cores, 1 at least, and its MiB, of which ``unit`` are counted
    together. ``amounts`` reads such a name.
    """

    profile: Callable[[int, int], str]
    amounts: Callable[[str], tuple[int, int]]
    unit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One that exists on a card. ``ids`` are the driver's own numbers (of MIG: ``gi`` and ``ci``).

    ``uuid`` is empty while it is incomplete, such as a GPU instance without a compute instance.
    """

    card: str
    profile: str
    placement: Placement
    uuid: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuttable:
    """What one card may be cut into now. ``blocked`` are partitions that take its room though no scheduler counts them:
    others' and those that are yet to be destroyed.
    """

    profiles: tuple[Profile, ...] = ()
    blocked: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Whether a card is in the mode in which it can be cut. ``problem`` is why it must not be switched now, or empty.

    ``pending`` differs from ``current`` until the card is reset. ``capable``: the card has such a mode. ``resets``: a
    switch resets the card, and outlasts the driver.
    """

    capable: bool
    current: bool = False
    pending: bool = False
    resets: bool = False
    problem: str = ""


Step = Callable[[Mapping[str, int]], None]
"""Called after each call that changed the hardware, with the ids that exist now, so that it can be journalled."""


class PartitionDriver(Protocol):
    """Raises ``HamiError`` for what fails; ``DriverUnavailableError`` if the driver as a whole does not answer."""

    def profiles(self, card: str) -> tuple[Profile, ...]:
        """What a card may be cut into, empty if it cannot be cut now (with the reason in the card's health)."""

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        """All on all cards, or on one, whoever made them, incomplete ones and unknown profiles too.

        ``UnlistedCardsError`` where some cards do not tell theirs; the UUID of one is empty if that is unknown too.
        """

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        """Make it, undo what was made if a call fails, and return it as a new listing has it. ``NoRoomError``."""

    def destroy(self, partition: Partition, step: Step) -> None:
        """Remove it if it is still the same (uuid and placement). One that is gone is no error. ``InUseError``.

        Without a uuid it is incomplete, and the same if ``ids`` and placement are.
        """

    def users(self, partition: Partition) -> Sequence[int]:
        """PIDs of processes that are known to use it; an empty answer proves nothing."""


class ModeDriver(Protocol):
    """Switches cards into the mode in which they can be cut, and back. It remembers nothing, and its calls block.

    Raises ``HamiError`` for what fails; ``DriverUnavailableError`` if the driver as a whole does not answer.
    """

    def mode(self, card: str) -> Mode:
        """The card's mode, and what speaks against switching it now."""

    def switch(self, card: str, *, on: bool) -> None:
        """Switch an idle card, and wait until it is back: 30 s at most. Nothing if it is in that mode already.

        ``InUseError`` where somebody has the card open. A switch that waits for the card's reset is not taken back.
        """
