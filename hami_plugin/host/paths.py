"""The node's file trees, and what is laid out in them for containers.

Every root can be moved, so that tests and simulations bring their own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

DEV = Path("/dev")


class Roots(Protocol):
    """Settings with the roots of a node's file trees. None means the usual place."""

    @property
    def sysfs_root(self) -> Path | None: ...

    @property
    def proc_root(self) -> Path | None: ...

    @property
    def dev_root(self) -> Path | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """The roots of the file trees that discovery reads and injection refers to.

    ``hook`` is HAMi's ``HOOK_PATH`` as the *host* sees it; ``hook_view`` is the same directory in this process.
    ``node`` is the node's name, for devices without their own. ``prepared``: on a machine that is only described,
    assume that whatever must be installed on a host is there.
    """

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    hook: Path = Path("/usr/local")
    hook_view: Path = Path("/usr/local")
    node: str = ""
    prepared: bool = False

    def elsewhere(self, *, sysfs: Path | None = None, proc: Path | None = None, dev: Path | None = None) -> HostPaths:
        """The same host with some other roots."""
        return replace(self, sysfs=sysfs or self.sysfs, proc=proc or self.proc, dev=dev or self.dev)

    def rooted(self, settings: Roots) -> HostPaths:
        """The same host with the roots of the settings."""
        return self.elsewhere(sysfs=settings.sysfs_root, proc=settings.proc_root, dev=settings.dev_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """The host's files for injection. Paths in ``/dev`` and the hook directory are mapped to this process's view."""

    paths: HostPaths

    def exists(self, path: str | Path) -> bool:
        """Whether a host path exists."""
        return self.seen(path).exists()

    def is_file(self, path: str | Path) -> bool:
        """Whether a host path is a file. A directory of that name is what a runtime made when the file was missing."""
        return self.seen(path).is_file()

    def read(self, path: str | Path, *, most: int = 65536) -> bytes:
        """How a host file begins. OSError where it cannot be read."""
        with self.seen(path).open("rb") as file:
            return file.read(most)

    def room(self, path: str | Path) -> int | None:
        """Free bytes on the file system of a host path; None if unknown, or if the path does not exist."""
        try:
            found = os.statvfs(self.seen(path))
        except OSError:
            return None
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def seen(self, path: str | Path) -> Path:
        """Where this process reaches a host path. Put together as text, since every Allocate asks several."""
        text = str(path)
        for root, view in ((DEV, self.paths.dev), (self.paths.hook, self.paths.hook_view)):
            above = str(root).rstrip("/")
            if text == above or text.startswith(f"{above}/"):
                return Path(f"{view}{text[len(above) :]}")
        return Path(text)


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


@contextmanager
def opened_shared(folder: Path, name: str, access: int = os.O_RDONLY) -> Iterator[int]:
    """A regular file of a folder that a container may write to, of the folder's own file system and with no other name.

    ``OSError`` for whatever else the container has put there: a link, a pipe, a device, another's file.
    """
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        file = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_dev != os.fstat(directory).st_dev:
                raise OSError(f"{folder.name}/{name} is not a regular file with one name on its folder's file system")
            yield file
        finally:
            os.close(file)
    finally:
        os.close(directory)


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
