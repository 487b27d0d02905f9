"""The partitions of this node, and the last switch of each card's mode, in files that survive a killed daemon.

One JSON line per change, flushed to the disk before the change is made. Only the cards' threads write, each about its
own card; readers get an immutable mapping.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hami_plugin.allocation.ledger import Journal
from hami_plugin.errors import HamiError
from hami_plugin.partitions.life import Entry, Owner, State
from hami_plugin.sdk.partitions import Placement

VERSION = 1
SLACK = 2000
"""Superseded lines, of some 500 bytes each, before the file is compacted."""


class PartitionJournal:
    """``entries`` by number. Methods that write raise OSError, and then nothing has changed."""

    def __init__(
        self,
        path: Path,
        boot: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.boot = boot
        self.entries: Mapping[int, Entry] = MappingProxyType({})
        self.unreadable: tuple[str, ...] = ()
        """Why lines of the file were skipped. A partition that they described must not be taken for unowned."""
        self.torn = ""
        """Why the last line was left out, where a crash has torn it. It was not on the disk yet, so that what it told
        of was not begun, or is found as after a crash in the moment before.
        """
        self._file = Journal(path)
        self._turn = threading.Lock()
        self._clock = clock
        self._monotonic = monotonic
        self._sequence = 0
        self._last = 0
        self._changed: dict[str, int] = {}

    def load(self) -> None:
        """Read the file. One that cannot be read at all is reported in ``unreadable`` and kept."""
        with self._turn:
            self._load()

    def changed(self, card: str) -> int:
        """A version that grows with every change of the card's entries."""
        return self._changed.get(card, 0)

    def new(self, entry: Entry, op: str) -> Entry:
        """Journal a new entry, and return it with its number."""
        with self._turn:
            numbered = replace(entry, number=self._last + 1)
            self._write(op, numbered, {**self.entries, numbered.number: numbered})
            self._last = numbered.number
            return numbered

    def put(self, entry: Entry, op: str) -> Entry:
        """Journal an entry's new state."""
        with self._turn:
            self._write(op, entry, {**self.entries, entry.number: entry})
            return entry

    def drop(self, entry: Entry, op: str) -> None:
        """Journal that the partition is gone."""
        with self._turn:
            left = {number: one for number, one in self.entries.items() if number != entry.number}
            self._write(op, replace(entry, state=State.DESTROYED), left)

    def close(self) -> None:
        with self._turn:
            self._file.close()

    def _write(self, op: str, entry: Entry, after: dict[int, Entry]) -> None:
        lines = self._line(op, entry)
        if self._file.lines > 2 * len(after) + SLACK:
            self._file.rewrite(self._whole(after))
        else:
            self._file.append(lines, lambda: self._whole(after), flush=True)
        self.entries = MappingProxyType(after)
        self._changed[entry.card] = self._changed.get(entry.card, 0) + 1

    def _whole(self, entries: Mapping[int, Entry]) -> Iterable[dict[str, Any]]:
        return [self._line("kept", entry) for entry in entries.values()]

    def _line(self, op: str, entry: Entry) -> dict[str, Any]:
        self._sequence += 1
        line = {
            "v": VERSION,
            "seq": self._sequence,
            "at": round(self._clock(), 3),
            "up": round(self._monotonic(), 3),
            "boot": self.boot,
            "op": op,
            "partition": _members(entry),
        }
        return _sealed(line)

    def _load(self) -> None:
        entries: dict[int, Entry] = {}
        try:
            lines = self._file.read()
        except HamiError as error:
            self.unreadable = (error.message,)
            return
        self.torn = self._file.torn
        wrong = list(self._file.unreadable[:-1] if self.torn else self._file.unreadable)
        for line in lines:
            try:
                entry = _entry(line)
            except (KeyError, TypeError, ValueError, ArithmeticError) as error:
                wrong.append(f"{str(line)[:80]}: {error!r}"[:200])
                continue
            self._sequence = max(self._sequence, line["seq"])
            self._last = max(self._last, entry.number)
            if entry.state is State.DESTROYED:
                entries.pop(entry.number, None)
            else:
                entries[entry.number] = entry
        self.entries = MappingProxyType(entries)
        self.unreadable = tuple(wrong)


def _checksum(line: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(line, sort_keys=True, separators=(",", ":")).encode())


def _members(entry: Entry) -> dict[str, Any]:
    members = asdict(entry) | {"placement": entry.placement._asdict()}
    if entry.owner is None:
        del members["owner"]
    return members


def _sealed(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, "crc": _checksum(line)}


def _opened(line: Mapping[str, Any]) -> dict[str, Any]:
    """ValueError or KeyError if the line is damaged."""
    read = dict(line)
    if read.pop("crc") != _checksum(read):
        raise ValueError("the checksum is wrong")
    if read["v"] != VERSION:
        raise ValueError(f"version {read['v']} is not known")
    return read


def _entry(line: Mapping[str, Any]) -> Entry:
    """The entry of one line. ValueError, KeyError or TypeError if the line is damaged."""
    members = dict(_opened(line)["partition"])
    members["state"] = State(members["state"])
    members["placement"] = Placement(**members["placement"])
    members["before"] = tuple((*seen, tuple(tuple(one) for one in ids)) for *seen, ids in members["before"])
    if "owner" in members:
        members["owner"] = Owner(**members["owner"])
    return Entry(**members)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeAttempt:
    """The last switch of a card's mode, in the boot ``boot`` at the Unix time ``at``.

    ``failures`` counts those in a row, with the last ``problem``. ``under_way``: its outcome is not written down.
    """

    card: str
    on: bool
    boot: str
    at: float
    failures: int = 0
    problem: str = ""
    under_way: bool = False


class ModeJournal:
    """The last ``attempts`` by card. ``load`` and ``put`` block; call them in turn."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        self.attempts: Mapping[str, ModeAttempt] = MappingProxyType({})
        self._file = Journal(path)

    def load(self) -> Sequence[str]:
        """Read the file; why lines were skipped. Attempts of an earlier boot say nothing."""
        try:
            lines = self._file.read()
        except HamiError as error:
            return (error.message,)
        wrong, found = list(self._file.unreadable), dict[str, ModeAttempt]()
        for line in lines:
            try:
                one = ModeAttempt(**_opened(line)["mode"])
            except (KeyError, TypeError, ValueError, ArithmeticError) as error:
                wrong.append(f"{str(line)[:80]}: {error!r}"[:200])
                continue
            if one.boot == self.boot:
                found[one.card] = one
        self.attempts = MappingProxyType(found)
        return wrong

    def put(self, attempt: ModeAttempt) -> None:
        """Write it down, on the disk. OSError where it cannot be, and then nothing has changed."""
        after = {**self.attempts, attempt.card: attempt}
        if self._file.lines > 2 * len(after) + SLACK:
            self._file.rewrite(self._whole(after))
        else:
            self._file.append(_attempted(attempt), lambda: self._whole(after), flush=True)
        self.attempts = MappingProxyType(after)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _whole(attempts: Mapping[str, ModeAttempt]) -> Iterable[dict[str, Any]]:
        return [_attempted(one) for one in attempts.values()]


def _attempted(one: ModeAttempt) -> dict[str, Any]:
    return _sealed({"v": VERSION, "mode": asdict(one)})
