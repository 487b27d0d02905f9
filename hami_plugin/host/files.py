"""Files of the daemon's own: written whole or not at all, and a journal that survives a kill between two lines."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace ``path`` by rename, so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_shared(path: Path, text: str) -> None:
    """A file that containers of any user may read, there whole or not at all. It does not wait for the disk.

    Its folder may be one that a container writes to: what it left there is replaced, and no link of its is followed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_shared_directory(path: Path) -> None:
    """Create a directory that containers of any user may write to, whatever the umask. Its parents stay closed."""
    with suppress(FileExistsError):
        try:
            path.mkdir(mode=0o777)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o777)
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(f"{path} is in the way: not a directory")
    if stat.S_IMODE(mode) != 0o777:
        path.chmod(0o777)


MOST_ENTRIES = 1024
"""How many entries of a container's folder are looked at. It may make as many as it likes."""


def remove_files(directory: Path, names: Iterable[str], suffix: str = "") -> None:
    """Remove ``names``, and what else ends with ``suffix``, from a folder that a container may write to.

    The folder is opened once and not by a link; a link in it is removed and never followed. An empty folder in the
    place of a file is removed too. OSError, with the name, for what stays.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in names:
            _remove(name, folder)
        if suffix:
            with os.scandir(folder) as entries:
                others = [entry.name for entry in islice(entries, MOST_ENTRIES) if entry.name.endswith(suffix)]
            for name in others:
                _remove(name, folder)
    finally:
        os.close(folder)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)


class StateLock:
    """An exclusive claim on a state directory, for the life of the process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._file: int | None = None

    def acquire(self) -> bool:
        """Try once. False: another process holds it."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file
        return True

    def holder(self) -> str:
        """The process id that the present holder has noted."""
        with suppress(OSError):
            return self._path.read_text(encoding="ascii").strip()
        return ""

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Journal:
    """JSON lines, appended with one write each. A killed process loses at most the line it was writing.

    Nothing is flushed to the disk itself: the kernel keeps what a killed process has written. After a power failure
    entries may be missing; then the pods' own annotations are the record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.lines = 0

    def read(self) -> list[dict[str, Any]]:
        """All entries; a torn or foreign line is passed over."""
        entries: list[dict[str, Any]] = []
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HamiError(f"cannot read {self._path}: {error}", hint="check stateDir and its permissions") from error
        for line in lines:
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    entries.append(entry)
        self.lines = len(lines)
        return entries

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add one entry. OSError when the disk refuses."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size:  # close a line that a killed process left open; blank lines are nothing
                os.write(self._file, b"\n")
        data = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, data) != len(data):
            self.close()  # so that the next entry begins on a line of its own
            raise OSError(f"{self._path}: the disk took only a part of an entry")
        self.lines += 1

    def rewrite(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace everything by ``entries``, by rename."""
        lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
        write_atomically(self._path, "".join(f"{line}\n" for line in lines))
        self.close()
        self.lines = len(lines)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
