"""What ``efsmi`` prints: the cards, how each can be cut (DRS), and the partitions that have been cut."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hami_plugin.sdk.tools import LastKnown, lines, read

DRS = "DRS"
"""What the tool says of a card that is cut into partitions."""
_BUS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_MEMORY = re.compile(r"(\d+)MiB\s+(\S+)")
T = TypeVar("T")

_PROFILE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A card of the table. ``bus`` is the end of its PCI address, ``memory`` in MiB, ``virtual`` how it is shared."""

    index: int
    model: str
    bus: str
    memory: int
    virtual: str
    serial: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One that has been cut out of a card."""

    profile: str
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a card can be cut: the tool's ids of profiles by name, and what has been cut already."""

    profiles: Mapping[str, str]
    partitions: tuple[Partition, ...]


def rows(table: str) -> Iterator[Row]:
    """The cards of the table. Each has two lines, of three columns each."""
    # | 0      Enflame S60          | 33.6.5           | 00:23:00.0  Enable        |
    # | 71℃    Sleep    118W / 300W | 42976MiB Disable | 0%          C807B40520388 |
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines(table)]
    for first, second in pairwise(cells):
        if len(first) != len(second) or len(first) != 3 or not _BUS.match(first[2]):
            continue
        number, _, model = first[0].partition(" ")
        amounts = _MEMORY.match(second[1])
        if number.isdecimal() and amounts:
            yield Row(
                index=int(number),
                model=model.strip().removeprefix("Enflame "),
                bus=first[2].split()[0].lower(),
                memory=int(amounts[1]),
                virtual=amounts[2],
                serial=(second[2].split() or [""])[-1],
            )


def profiles(listing: str) -> Mapping[str, str]:
    """The ids of profiles by name, from lines of index, name and id."""
    return {words[1]: words[2] for words in _named(listing)}


def partitions(listing: str, index: int) -> tuple[Partition, ...]:
    """Those of one card, from lines of index, profile, id and UUID."""
    return tuple(Partition(profile=words[1], uuid=words[3]) for words in _named(listing) if words[0] == str(index))


def _named(listing: str) -> Iterator[list[str]]:
    split = (line.strip().strip("|").split() for line in lines(listing))
    return (words for words in split if len(words) > 3 and _PROFILE.fullmatch(words[1]))


class Efsmi:
    """Asks the tool now and then for the cards, and how those can be cut that are to be."""

    def __init__(self, tool: Path, *, deadline: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._tool = tool
        self._deadline = deadline
        self._known: LastKnown[Mapping[Row, Cut | None]] = LastKnown(self._told, {}, clock=clock)

    @property
    def problem(self) -> str:
        return self._known.problem

    def row(self, address: str) -> Row | None:
        """The card at a PCI address. The tool shortens the address's domain."""
        return next((row for row in self._known.answer() if address.endswith(row.bus)), None)

    def cut(self, index: int) -> Cut | None:
        """Of a card that can be cut, by the tool's number for it."""
        return next((cut for row, cut in self._known.answer().items() if row.index == index), None)

    def _told(self) -> Mapping[Row, Cut | None]:
        """All cards of a node can be cut alike: Enflame's agent counts on it, too."""
        found = self._read(lambda table: tuple(rows(table)))
        first = next((row for row in found if row.virtual == DRS), None)
        if first is None:
            return dict.fromkeys(found)
        alike = self._read(profiles, "-i", str(first.index), "--drs", "--list-profile")

        def cut(listing: str) -> Mapping[Row, Cut | None]:
            return {
                row: Cut(profiles=alike, partitions=partitions(listing, row.index)) if row.virtual == DRS else None
                for row in found
            }

        return self._read(cut, "-L")

    def _read(self, parse: Callable[[str], T], *arguments: str) -> T:
        return read(self._tool, parse, *arguments, deadline=self._deadline)
