"""Virtual DCUs: a folder for each container that has a part of a card, with a file that Hygon's library reads there.

The folders' names, which no container can change, are the only record of which compute units, numbers and pipes are
taken. They are those of HAMi's agent, and outlive this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Self

from hami_plugin.errors import RefusalReason, RefusedError

MOST, MOST_PIPES = 200, 20
"""How many virtual DCUs a node, and how many pipes a card can have."""
_WORD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of card number ``device``, for ``owner``: a pod's UID and a container's name. ``mask`` has a bit for each
    compute unit.
    """

    owner: tuple[str, str]
    device: int
    number: int
    pipe: int
    mask: int

    @property
    def folder(self) -> str:
        low, high = self._halves()
        return "_".join((*self.owner, str(self.device), str(self.pipe), str(self.number), low, high))

    @property
    def file(self) -> str:
        return f"vdev{self.number}.conf"

    def text(self, address: str, memory: int) -> str:
        """The file's text. ``memory`` is in MiB."""
        low, high = self._halves()
        return (
            f"PciBusId: {address}\ncu_mask: 0x{low}\ncu_mask: 0x{high}\ncu_count: {self.mask.bit_count()}\n"
            f"mem: {memory} MiB\ndevice_id: {self.device}\nvdev_id: {self.number}\npipe_id: {self.pipe}\nenable: 1\n"
        )

    @classmethod
    def of(cls, folder: str) -> Self:
        """From a folder's name; ValueError when it is no such name."""
        uid, container, device, pipe, number, low, high = folder.split("_")
        mask = int(low, 16) | int(high, 16) << _WORD
        return cls(owner=(uid, container), device=int(device), number=int(number), pipe=int(pipe), mask=mask)

    def _halves(self) -> tuple[str, str]:
        return f"{self.mask & (1 << _WORD) - 1:016x}", f"{self.mask >> _WORD:016x}"


def slices(folder: Path) -> Iterator[Slice]:
    """All that are in the folder."""
    for one in sorted(folder.glob("*_*")):
        try:
            yield Slice.of(one.name)
        except ValueError:
            continue


def keep(folder: Path, owners: AbstractSet[tuple[str, str]]) -> None:
    """Take back the slices of all others."""
    for one in slices(folder):
        if one.owner not in owners:
            rmtree(folder / one.folder, ignore_errors=True)


def cut(taken: Sequence[Slice], owner: tuple[str, str], *, device: int, compute_units: int, percent: int) -> Slice:
    """A new slice beside those that are ``taken``. Without a percentage it may use all of the card's units."""
    every = (1 << compute_units) - 1
    here = [one for one in taken if one.device == device]
    free = every
    for one in here:
        free &= ~one.mask if one.mask != every else every
    mask = _lowest(max(1, compute_units * percent // 100), free) if percent else every
    number = _free({one.number for one in taken}, MOST)
    pipe = _free({one.pipe for one in here}, MOST_PIPES)
    if not mask or number is None or pipe is None:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"DCU {device} has no room for {percent}% of its {compute_units} compute units: {free.bit_count()} are "
            f"free, and {len(here)} virtual DCUs are on it",
            hint="a pod that has ended may not be gone yet; the kubelet's next try for a new pod will find room",
        )
    return Slice(owner=owner, device=device, number=number, pipe=pipe, mask=mask)


def _lowest(count: int, free: int) -> int:
    """So many of the lowest bits; 0 when there are not as many."""
    chosen = 0
    for _ in range(count):
        bit = free & -free
        if not bit:
            return 0
        chosen, free = chosen | bit, free ^ bit
    return chosen


def _free(taken: AbstractSet[int], most: int) -> int | None:
    return next((number for number in range(most) if number not in taken), None)
