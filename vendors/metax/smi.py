"""What ``mx-smi`` prints of the GPUs: their names, whether they can be used, their memory and their links."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from hami_plugin.sdk import tools
from hami_plugin.sdk.tools import lines

T = TypeVar("T")

_ROW = re.compile(
    r"GPU#?\s{0,16}(\d{1,9})[:\s]{1,16}(\S{1,64})\s{1,64}([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s{0,64}"
    r"(.{0,64}?)\s{0,64}(?:\(UUID:\s{0,16}([^)\s]{1,64})\))?$"
)
_MEMORY = re.compile(r"\bvis_vram total\s*:\s*(\d+)\s*KB", re.IGNORECASE)
LINKED = "MX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One GPU in the tool's list. ``state`` is ``Available`` for one that works; ``memory`` is in MiB."""

    number: int
    model: str
    address: str
    state: str
    uuid: str
    memory: int = 0

    @property
    def available(self) -> bool:
        return self.state == "Available"


class Smi:
    """Asks the tool, and keeps what it said of memory and links for as long as the same GPUs are there.

    The list is asked for again after ``fresh`` seconds: it says which GPUs cannot be used. So is memory that it has not
    told of one of them.
    """

    def __init__(
        self, tool: Path, *, deadline: float = 10.0, fresh: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tool = tool
        self._deadline = deadline
        self._fresh = fresh
        self._clock = clock
        self._asked: AbstractSet[str] = frozenset()
        self._until = float("-inf")
        self._listed: Mapping[str, Listed] = {}
        self._memory: Mapping[str, int] = {}
        self.linked: AbstractSet[tuple[int, int]] = frozenset()

    def listed(self, addresses: AbstractSet[str]) -> Mapping[str, Listed]:
        """The GPUs by PCI address. ``ToolError`` when the tool does not tell."""
        anew = not addresses <= self._asked
        if anew or self._clock() >= self._until:
            if anew or not all(one.memory for one in self._listed.values()):
                self._memory = {**self._memory, **self._read(memory_of, "--show-memory")}
            if anew:
                self.linked = self._read(links_of, "topo", "-m")
            listed = self._read(partial(listed_of, memory=self._memory), "-L")
            self._listed = {one.address: one for one in listed}
            self._asked, self._until = addresses, self._clock() + self._fresh
        return self._listed

    def _read(self, parse: Callable[[str], T], *arguments: str) -> T:
        return tools.read(self.tool, parse, *arguments, deadline=self._deadline)


def listed_of(printed: str, memory: Mapping[str, int]) -> Sequence[Listed]:
    """The GPUs of ``-L``. ``memory`` is what is known of it, by address."""
    return tuple(_rows(printed, memory))


def memory_of(printed: str) -> Mapping[str, int]:
    """MiB by address."""
    return dict(_memory(printed))


def links_of(printed: str) -> AbstractSet[tuple[int, int]]:
    """The pairs of GPUs that are linked."""
    return frozenset(_linked(printed))


def _rows(printed: str, memory: Mapping[str, int]) -> Iterator[Listed]:
    for line in lines(printed):
        if row := _ROW.search(line.rstrip()):
            number, model, address, state, uuid = row.groups()
            address = address.lower()
            yield Listed(
                number=int(number),
                model=model,
                address=address,
                state=state,
                uuid=uuid or "",
                memory=memory.get(address, 0),
            )


def _memory(printed: str) -> Iterator[tuple[str, int]]:
    """Below each GPU's line stands its memory, in KiB."""
    address = ""
    for line in lines(printed):
        if row := _ROW.search(line.rstrip()):
            address = row[3].lower()
        elif address and (found := _MEMORY.search(line)):
            yield address, int(found[1]) // 1024


def _linked(printed: str) -> Iterator[tuple[int, int]]:
    """Pairs of GPUs with a MetaXLink between them: it stands in place of their distance on the PCI bus."""
    columns: list[int] = []
    for line in lines(printed):
        words = line.split()
        if words and all(re.fullmatch(r"GPU\d+", word) for word in words[:2]) and len(words) > 1:
            columns = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and columns and re.fullmatch(r"GPU\d+", words[0]):
            row = int(words[0][3:])
            yield from ((row, column) for column, word in zip(columns, words[1:], strict=False) if word == LINKED)
