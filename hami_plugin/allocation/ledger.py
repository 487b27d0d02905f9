"""What was handed out to whom, in memory and in a journal that a killed daemon finds again."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hami_plugin.allocation.identity import HeldShare, HeldShares, Key, Resize
from hami_plugin.errors import HamiError
from hami_plugin.host.files import write_atomically
from hami_plugin.model.placement import Grant
from hami_plugin.process.concurrency import Watched, Worker, settable_error
from hami_plugin.process.log import logger

log = logger(__name__)

MAX_NAMED = 5
MAX_TEXT = 4096
MAX_AMOUNT = 1 << 63


class Ledger:
    """Shares by (pod UID, container, resource). A share is reserved on the event loop, then written, then answered."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self.written = journal.written
        """Wait until all that was noted is on file. OSError when the disk refuses."""
        self.held = HeldShares()
        """What is handed out. Only the ledger changes it."""
        self.changes: Watched[int] = Watched(0)
        """Its version moves with every change of what is held."""

    @property
    def problem(self) -> str:
        """Why what is held is not on file; empty while it is."""
        return self._journal.problem

    def load(self) -> int:
        """Read the journal: what a former life of the daemon handed out. Answers how many shares."""
        entries = self._journal.read()
        for reason in self._journal.unreadable[:MAX_NAMED]:
            log.warning("journal line skipped", problem=reason)
        if len(self._journal.unreadable) > MAX_NAMED:
            log.warning("journal lines skipped", more=len(self._journal.unreadable) - MAX_NAMED)
        for entry in entries:
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                log.warning("journal entry skipped", problem=repr(error)[:200])
        return len(self.held)

    def reserve(self, held: HeldShare) -> None:
        """Take the share, in memory only. From here on nobody else can be given it.

        An id that the kubelet hands out anew is no other pod's any more, whether or not that pod's end has been seen.
        """
        for other in self.held.of_ids(held.resource, held.ids):
            if other.uid != held.uid:
                self._take(other.key)
        self._put(held)

    def write(self, held: HeldShare) -> None:
        """Have a reserved share put on file. The kubelet must not hear of it before ``written``."""
        self._note({"op": "hold", **_entry(held)})

    def change(self, held: HeldShare) -> None:
        """What a container has is to be put on file anew, if it still has anything."""
        if held.key in self.held:
            self._put(held)
            self.write(held)

    def check(self) -> None:
        """Have the journal written anew, if somebody took it away."""
        held = tuple(self.held.values())
        self._journal.check(lambda: _whole(held))

    def settle(self, keys: Iterable[Key]) -> None:
        """The API server has confirmed that these shares are recorded at their pod.

        Losing a note of what is settled or gone costs a repeated patch after a restart, no more.
        """
        for key in keys:
            held = self.held.get(key)
            if held and not held.settled:
                self._put(replace(held, settled=True))
                self._note({"op": "settled", "key": list(key)})

    def drop(self, keys: Iterable[Key]) -> None:
        """These shares are nobody's any more."""
        for key in list(keys):
            if self._take(key):
                self._note({"op": "drop", "key": list(key)})

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Append an entry. Beside it goes all that counts as of now, for whoever writes the file anew later."""
        held = tuple(self.held.values())
        self._journal.append(entry, len(held), lambda: _whole(held))

    def _replay(self, entry: Mapping[str, Any]) -> None:
        match entry["op"]:
            case "hold":
                self.reserve(_held(entry))
            case "settled":
                key = _key(entry)
                if key in self.held:
                    self._put(replace(self.held[key], settled=True))
            case "drop":
                self._take(_key(entry))

    def _put(self, held: HeldShare) -> None:
        self.changes.touch()
        self.held.put(held)

    def _take(self, key: Key) -> bool:
        """Whether there was such a share."""
        if self.held.take(key) is None:
            return False
        self.changes.touch()
        return True


def _whole(held: Iterable[HeldShare]) -> Iterable[Mapping[str, Any]]:
    return ({"op": "hold", **_entry(one)} for one in held)


def _key(entry: Mapping[str, Any]) -> Key:
    uid, container, resource = entry["key"]
    return (_text(uid), _text(container), _text(resource))


def _entry(held: HeldShare) -> dict[str, Any]:
    return {
        "uid": held.uid,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
        "resource": held.resource,
        "ids": sorted(held.ids),
        "grants": _written(held.grants),
        "init": held.init,
        "settled": held.settled,
        **({"undecided": True} if held.undecided else {}),
        **({"resized": True} if held.resized else {}),
        **({"resize": [_written(held.resize.before), _written(held.resize.after)]} if held.resize else {}),
    }


def _written(grants: Iterable[Grant]) -> list[list[Any]]:
    return [[grant.uuid, grant.device_type, grant.memory, grant.cores, grant.notes] for grant in grants]


def _held(entry: Mapping[str, Any]) -> HeldShare:
    return HeldShare(
        uid=_text(entry["uid"]),
        namespace=_text(entry["namespace"]),
        pod=_text(entry["pod"]),
        container=_text(entry["container"]),
        resource=_text(entry["resource"]),
        ids=frozenset(map(_text, entry["ids"])),
        grants=_grants(entry["grants"]),
        init=bool(entry["init"]),
        settled=bool(entry["settled"]),
        undecided=bool(entry.get("undecided", False)),
        resized=bool(entry.get("resized", False)),
        resize=_resize(*entry["resize"]) if "resize" in entry else None,
    )


def _resize(before: Sequence[Any], after: Sequence[Any]) -> Resize:
    return Resize(before=_grants(before), after=_grants(after))


def _grants(written: Sequence[Any]) -> tuple[Grant, ...]:
    return tuple(
        Grant(
            uuid=_text(uuid),
            device_type=_text(device_type),
            memory=_amount(memory),
            cores=_amount(cores),
            notes=_notes(*notes),
        )
        for uuid, device_type, memory, cores, *notes in written
    )


def _text(value: object) -> str:
    """A name as it was written. What is none would fail later, where it is shown or compared."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not (value.isprintable() or not value):
        raise ValueError(f"{value!r:.80} is no name")
    return value


def _amount(value: object) -> int:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= MAX_AMOUNT:
        raise ValueError(f"{value!r:.80} is no amount from 0 to {MAX_AMOUNT}")
    return int(value)


def _notes(notes: object = None, *_later: object) -> Mapping[str, Any] | None:
    if notes is not None and not isinstance(notes, dict):
        raise ValueError(f"{notes!r:.80} are no notes")
    return notes


MAX_BYTES = 64 << 20
"""A journal of ten thousand shares is shorter, and what is longer was not written here."""
MAX_LINE_BYTES = 1 << 20

Entry = Mapping[str, Any]
Whole = Callable[[], Iterable[Entry]]
"""All entries that count, once the one that is appended has its effect."""


class Journal:
    """JSON lines, appended with one write each. A killed process loses at most the line it was writing.

    A line that the disk took in part is cut off again, at the next append also one that a crash has torn. A file that
    somebody took away, replaced or changed is noticed before each append, and is then written anew, with its directory.
    Appending does not wait for the disk: the kernel keeps what a killed process has written. Calls come from one thread
    at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._length: int | None = None
        self._torn = False
        self.lines = 0
        self.unreadable: tuple[str, ...] = ()
        """Why lines were skipped when the file was read."""
        self.torn = ""
        """Why the last of these, where its end is missing: what a crash leaves of a line that was being written."""

    def read(self) -> list[dict[str, Any]]:
        """All entries. A line that is torn, too long, too deep or foreign is skipped, and named."""
        data = self._bytes()
        entries: list[dict[str, Any]] = []
        unreadable: list[str] = []
        lines = data.splitlines()
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                entries.append(_parsed(line))
            except (ValueError, RecursionError) as error:
                unreadable.append(f"line {number} ({line[:40]!r}…, {len(line)} bytes): {_brief(error)}")
        self.close()
        self.lines, self._length, self.unreadable = len(lines), len(data), tuple(unreadable)
        self.torn = unreadable[-1] if _torn_end(data) else ""
        return entries

    def append(self, entry: Entry, whole: Whole | None = None, *, flush: bool = False) -> bool:
        """Add one entry, or write the ``whole`` anew where the file is not ours any more; True then.

        OSError when the disk refuses: then nothing of the entry is left to be read. With ``flush`` it is on the disk.
        """
        if self._length is not None and not self.intact:
            self.rewrite(whole() if whole else [entry], flush=flush)
            return True
        file = self._opened() if self._file is None else self._file
        data = b"\n" * self._torn + _line(entry)  # a line that could not be cut off is ended; blank lines are nothing
        try:
            written = os.write(file, data)
        except OSError:
            self._cut_back(file)
            raise
        if written != len(data):
            self._cut_back(file)
            raise OSError(f"{self._path}: the disk took only a part of an entry")
        if flush:
            os.fsync(file)
        self._length, self._torn = (self._length or 0) + len(data), False
        self.lines += 1
        return False

    @property
    def intact(self) -> bool:
        """Whether the path still leads to the file that was written or read last, with nothing added or cut off."""
        try:
            there = self._path.stat()
        except OSError:
            return self._file is None and not self._length
        if self._file is not None:
            ours = os.fstat(self._file)
            if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                return False
        return self._length is None or there.st_size == self._length

    def rewrite(self, entries: Iterable[Entry], *, flush: bool = True) -> None:
        """Replace everything by ``entries``, by rename."""
        lines = [_line(entry) for entry in entries]
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._path, b"".join(lines).decode(), flush=flush)
        self._renewed(lines)

    def prepare(self, entries: Iterable[Entry]) -> list[bytes]:
        """Write ``entries`` beside the journal and flush them to the disk. This may take its time, on any thread."""
        lines = [_line(entry) for entry in entries]
        self._beside.unlink(missing_ok=True)
        with self._beside.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        return lines

    def adopt(self, prepared: list[bytes], since: Iterable[Entry]) -> None:
        """Let what is ``prepared``, and what came ``since``, take the journal's place."""
        later = [_line(entry) for entry in since]
        try:
            with self._beside.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(b"".join(later))
            self._beside.replace(self._path)
        finally:
            self._beside.unlink(missing_ok=True)
        self._renewed([*prepared, *later])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def _beside(self) -> Path:
        return self._path.with_name(f".{self._path.name}.compact")

    def _bytes(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise HamiError(f"cannot read {self._path}: {error}", hint="check stateDir and its permissions") from error
        if len(data) > MAX_BYTES:
            raise HamiError(
                f"{self._path} has more than {MAX_BYTES} bytes, which no daemon writes",
                hint="move it away: what is handed out is then found in the kubelet's checkpoint and at the pods",
            )
        return data

    def _opened(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._length = os.fstat(self._file).st_size
            end = os.pread(self._file, MAX_LINE_BYTES, max(0, self._length - MAX_LINE_BYTES))
            self._torn = bool(end) and not end.endswith(b"\n")
            torn = len(_torn_end(end))
            if torn and (torn < len(end) or torn == self._length):  # else it begins before what was read
                self._length, self._torn = self._length - torn, False
                self._cut_back(self._file)
        return self._file

    def _cut_back(self, file: int) -> None:
        try:
            os.ftruncate(file, self._length or 0)
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._length = os.fstat(file).st_size

    def _renewed(self, lines: list[bytes]) -> None:
        self.close()
        self.lines, self._length, self._torn = len(lines), sum(map(len, lines)), False


def _torn_end(data: bytes) -> bytes:
    """What follows the last end of a line, unless it is a whole entry."""
    end = data[data.rfind(b"\n") + 1 :]
    if not end:
        return b""
    try:
        _parsed(end)
    except (ValueError, RecursionError):
        return end
    return b""


class JournalWriter:
    """A ``Journal`` on a thread of its own, which writes in the order of the calls. Call it on the event loop.

    So a disk that hangs holds up those who wait for their own entry, for ``deadline`` seconds, and nobody else. A
    journal that is mostly about the past is written anew: what takes the disk's time is done beside the entries that
    are appended meanwhile, on a second thread.
    """

    SLACK = 512
    MAX_WAITING = 256

    def __init__(self, journal: Journal, *, deadline: float = 5.0) -> None:
        self._journal = journal
        self._deadline = deadline
        self._writer, self._compactor = Worker("journal"), Worker("journal compaction")
        self._room = threading.BoundedSemaphore(self.MAX_WAITING)
        self._last: Future[None] = Future()
        self._last.set_result(None)
        self._missed = self._owed = self._closed = False
        self._since: list[Entry] | None = None
        self.problem = ""
        """Why the newest entry is not on file; empty while all are."""
        self.renewals = 0
        """How often the file was gone or changed, and was written anew."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        return self._journal.unreadable

    def read(self) -> list[dict[str, Any]]:
        return self._journal.read()

    def append(self, entry: Entry, held: int, whole: Whole) -> None:
        """Have an entry written when its turn comes. ``held`` is how many entries ``whole`` has."""
        self._put(lambda: self._append(entry, held, whole))

    def check(self, whole: Whole) -> None:
        """Have the file written anew when its turn comes, if it is not as it was left."""
        self._put(lambda: self._check(whole))

    async def written(self) -> None:
        """Wait until the entry that was appended last is on file. OSError when it is not, or not in time.

        One that is given up before its turn is not written any more.
        """
        try:
            async with asyncio.timeout(self._deadline):
                await asyncio.wrap_future(self._last)
        except TimeoutError as error:
            raise OSError(f"the disk has not taken the journal's entry within {self._deadline:g} s") from error

    def flush(self, within: float = 5.0) -> None:
        """Wait, on any thread, until all that was asked for so far is done, or the time is up."""
        for worker in (self._writer, self._compactor, self._writer):
            done = threading.Event()
            worker.put(done.set)
            done.wait(within)

    def close(self, within: float = 5.0) -> None:
        """As ``flush``, and let the threads end."""
        if self._closed:
            return
        self._closed = True
        self._writer.put(self._journal.close)
        self.flush(within)
        self._writer.close()
        self._compactor.close()

    def _put(self, work: Callable[[], None]) -> None:
        answer: Future[None] = Future()
        self._last = answer
        if not self._room.acquire(blocking=False):
            self._missed = True  # what follows is not about this entry, so the next one that is taken writes all
            self.problem = f"the disk has not taken the last {self.MAX_WAITING} entries of the journal"
            answer.set_exception(OSError(self.problem))
            return
        owed, self._missed = self._missed, False
        self._writer.put(lambda: self._perform(work, answer, owed=owed))

    def _perform(self, work: Callable[[], None], answer: Future[None], *, owed: bool) -> None:
        """On the thread."""
        self._room.release()
        self._owed = self._owed or owed
        if not answer.set_running_or_notify_cancel():
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # carried to whoever waits, and kept for the others
            self.problem = f"the journal cannot be written: {error}"
            answer.set_exception(settable_error(error))
        else:
            self.problem = ""
            answer.set_result(None)

    def _append(self, entry: Entry, held: int, whole: Whole) -> None:
        if self._owed:
            self._renew(whole)
        elif self._journal.append(entry, whole):
            self._renewed()
        elif self._since is not None:
            self._since.append(entry)
        elif self._journal.lines > 2 * held + self.SLACK:
            since: list[Entry] = []
            self._since = since
            self._compactor.put(lambda: self._prepare(whole, since))

    def _check(self, whole: Whole) -> None:
        if self._owed or not self._journal.intact:
            self._renew(whole)

    def _renew(self, whole: Whole) -> None:
        self._journal.rewrite(whole(), flush=False)
        self._owed = False
        self._renewed()

    def _renewed(self) -> None:
        self.renewals += 1
        self._since = None  # what is being prepared is about a file that is no more

    def _prepare(self, whole: Whole, since: list[Entry]) -> None:
        """On the second thread: the part that waits for the disk."""
        lines: list[bytes] | None = None
        with suppress(OSError):  # the longer journal is as good; the next entry begins again
            lines = self._journal.prepare(whole())
        self._writer.put(lambda: self._adopt(lines, since))

    def _adopt(self, lines: list[bytes] | None, since: list[Entry]) -> None:
        """On the first thread again."""
        if self._since is not since:
            return
        self._since = None
        if lines is not None and self._journal.intact:
            with suppress(OSError):
                self._journal.adopt(lines, since)


def _line(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"more than {MAX_LINE_BYTES} bytes")
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # named like any line that says nothing
    return entry


def _brief(error: Exception) -> str:
    return f"{error}"[:120]
