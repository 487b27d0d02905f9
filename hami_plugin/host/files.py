"""Files of the daemon's own, written whole or not at all, and its claim on their directory."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from hami_plugin.process.concurrency import Worker

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


def write_atomically(path: Path, text: str, mode: int = 0o600, *, flush: bool = True) -> None:
    """Replace ``path`` by rename, so that readers see the old text or the new one.

    With ``flush``, the text reaches the disk before the name, so that a power failure leaves no empty file.
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


def remove_unfinished(directory: Path) -> None:
    """Remove what killed processes were writing in a directory that is this process's alone."""
    with suppress(OSError):
        for path in [path for path in directory.iterdir() if _TEMPORARY.fullmatch(path.name)]:
            path.unlink(missing_ok=True)


class NewestText:
    """A file that is written on its own thread, with a flush. Superseded text is skipped.

    ``failed`` is why the newest text could not be written; empty otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = ""
        self._worker = Worker(f"writes {path.name}")
        self._newest: str | None = None
        self._written: str | None = None
        self._turn = threading.Lock()

    def put(self, text: str) -> None:
        """Queue ``text`` to be written."""
        with self._turn:
            due, self._newest = self._newest is None, text
        if due:
            self._worker.put(self._write)

    def check(self) -> None:
        """Write the newest text again if the file is gone."""
        self._worker.put(self._check)

    def wait(self, within: float = 5.0) -> bool:
        """Wait, on any thread, until all queued text is written or has failed. False after the timeout."""
        done = threading.Event()
        self._worker.put(done.set)
        return done.wait(within)

    def close(self) -> None:
        """End the thread once its current work is done."""
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


class StateLock:
    """An exclusive claim on a state directory, which ends with the process at the latest.

    ``generation`` counts the claims: it is above that of each earlier holder whose file is still there.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._file: int | None = None
        self.generation = 0

    def acquire(self) -> bool:
        """Try once. False: another process holds it."""
        return self._claimed(renewing=False)

    def renew(self) -> bool:
        """Lock the directory again if it was removed or replaced. False if another process has locked it meanwhile."""
        if self.intact:
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._file
        if not self._claimed(renewing=True):
            return False
        if before is not None:
            os.close(before)
        return True

    @property
    def intact(self) -> bool:
        """Whether the locked file is still the one at the path."""
        if self._file is None:
            return False
        try:
            there, ours = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def holder(self) -> tuple[str, int]:
        """The process id and the generation that the last holder has noted; generation 0 where it noted none."""
        return self._noted()

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _claimed(self, *, renewing: bool) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        if not renewing:
            self.generation = max(self.generation, self._noted()[1]) + 1
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()} {self.generation}\n".encode())
        self._file = file
        return True

    def _noted(self) -> tuple[str, int]:
        text = ""
        with suppress(OSError, UnicodeError), self._path.open(encoding="ascii") as file:
            text = file.read(64)
        process, _, generation = text.strip().partition(" ")
        return process, int(generation) if generation.isdecimal() else 0
