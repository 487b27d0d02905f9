"""What ``cnmon`` prints: each card's memory, and which cards have MLU-Links between them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hami_plugin.sdk.tools import LastKnown, lines, read

# | 0     /   MLU370-X4    v1.1.6 | On          v4.20.11 | 0%          N/A       |
# |  0%   32C         30 W/ 150 W |     0 MiB/ 23308 MiB | 10240 MiB/1048576 MiB |
_FIRST = re.compile(r"\|\s*(\d+)\s+\S+\s+\S+\s+v[\d.]+\s*\|\s*(\S+)")
_SECOND = re.compile(r"\|[^|]*\|\s*\d+ MiB/\s*(\d+) MiB\s*\|")
_MLU = re.compile(r"MLU\d+")
LINKED = "MLK"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card of the table. ``memory`` is in MiB; ``working`` is False where the tool says that it did not start."""

    memory: int
    working: bool = True


def cards(table: str) -> Mapping[int, Card]:
    """The cards of the table by number. Older tools say whether a card has started, newer ones where it is."""
    found = ((_FIRST.match(one), _SECOND.match(two)) for one, two in pairwise(lines(table)))
    return {int(a[1]): Card(memory=int(b[1]), working=a[2] not in ("Off", "Error")) for a, b in found if a and b}


def linked(matrix: str) -> frozenset[tuple[int, int]]:
    """The pairs of cards, in either order, that the matrix of ``topo -m`` names as linked directly."""
    return frozenset(_linked(matrix))


def _linked(matrix: str) -> Iterator[tuple[int, int]]:
    columns: list[int] = []
    for line in lines(matrix):
        words = line.replace("|", " ").split()
        if not words or not _MLU.fullmatch(words[0]):
            continue
        if not columns:
            columns = [int(word.removeprefix("MLU")) for word in words if _MLU.fullmatch(word)]
            continue
        row = int(words[0].removeprefix("MLU"))
        yield from ((row, column) for column, cell in zip(columns, words[1:], strict=False) if LINKED in cell)


class Cnmon:
    """Asks for the table now and then, and for the matrix when somebody wants it."""

    def __init__(self, tool: Path, *, deadline: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._tool = tool
        self._deadline = deadline
        self._cards: LastKnown[Mapping[int, Card]] = LastKnown(lambda: self._told(cards), {}, clock=clock)

    @property
    def problem(self) -> str:
        return self._cards.problem

    def cards(self) -> Mapping[int, Card]:
        """All cards that the tool has told of when it last answered."""
        return self._cards.answer()

    def linked(self) -> frozenset[tuple[int, int]]:
        """``ToolError`` when the tool does not tell."""
        return self._told(linked, "topo", "-m")

    def _told(self, parse: Callable[[str], T], *arguments: str) -> T:
        return read(self._tool, parse, *arguments, deadline=self._deadline)
