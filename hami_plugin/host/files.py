"""Files of the daemon's own, written whole or not at all, and what it lays out for containers."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hami_plugin.host.threads import Worker


def write_atomically(path: Path, text: str, mode: int = 0o600, *, flush: bool = True) -> None:
    """Replace ``path`` by rename, so that a reader sees the old text or the new one, never a part.

    With ``flush`` the text is on the disk before the name is, so that no power failure leaves an empty file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class NewestText:
    """A file that is written on a thread of its own, with a flush. What is superseded before its turn is not written.

    ``failed`` says why the newest text is not on file, empty when it is or will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = ""
        self._worker = Worker(f"writes {path.name}")
        self._newest: str | None = None
        self._written: str | None = None
        self._turn = threading.Lock()

    def put(self, text: str) -> None:
        """Have ``text`` written."""
        with self._turn:
            due, self._newest = self._newest is None, text
        if due:
            self._worker.put(self._write)

    def check(self) -> None:
        """Have the newest text written once more, if the file is gone."""
        self._worker.put(self._check)

    def wait(self, within: float = 5.0) -> bool:
        """Wait, on any thread, until what was put so far is on file, or has failed. False: not in time."""
        done = threading.Event()
        self._worker.put(done.set)
        return done.wait(within)

    def close(self) -> None:
        """Let the thread end once its present work is done."""
        self._worker.close()

    def _write(self) -> None:
        with self._turn:
            text, self._newest = self._newest, None
        if text is not None:
            self._put_down(text)

    def _check(self) -> None:
        if self._written is not None and not self.path.exists():
            self._put_down(self._written)

    def _put_down(self, text: str) -> None:
        try:
            write_atomically(self.path, text)
        except (OSError, ValueError) as error:
            self.failed = f"{self.path} cannot be written: {error}"
        else:
            self.failed, self._written = "", text


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


MAX_ENTRIES = 1024
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
                others = [entry.name for entry in islice(entries, MAX_ENTRIES) if entry.name.endswith(suffix)]
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

    def renew(self) -> bool:
        """Claim the directory again if it was taken away or replaced. False: another process has claimed it since."""
        if self.intact:
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._file
        if not self.acquire():
            return False
        if before is not None:
            os.close(before)
        return True

    @property
    def intact(self) -> bool:
        """Whether the file that this process holds is the one that another process would find."""
        if self._file is None:
            return False
        try:
            there, ours = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def holder(self) -> str:
        """The process id that the present holder has noted."""
        with suppress(OSError):
            return self._path.read_text(encoding="ascii").strip()
        return ""

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
