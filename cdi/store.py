"""The spec directories: every file in them read once, and specs of our own written whole or not at all.

Ours is what starts with our prefix; everything else in the directory is left alone. A file is written under a
temporary name that no runtime reads, flushed to the disk, and renamed, so that a reader sees the old spec or the new
one. What a killed process leaves behind is cleaned at the next start.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cdi.documents import EXTENSIONS, YamlReader
from cdi.errors import StoreError
from cdi.inject import HostNode
from cdi.registry import Registry, SpecFile, registry

DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The default directories of runtimes, the one with the highest priority last."""
MAX_SIZE = 4 * 1024 * 1024
"""Bytes of one file; the specs of a large machine have some hundred kilobytes."""


def load(directories: Iterable[Path] = DIRECTORIES, *, yaml: YamlReader | None = None) -> Registry:
    """What a runtime makes of ``directories`` now."""
    return registry(read_directories(directories), yaml=yaml)


def read_directories(directories: Iterable[Path] = DIRECTORIES) -> tuple[SpecFile, ...]:
    """The spec files of ``directories``, by directory and name. A missing directory has none."""
    return tuple(
        file for priority, directory in enumerate(directories) for file in _directory_files(directory, priority)
    )


def host_node(path: str) -> HostNode:
    """The node at ``path`` on this machine. ``OSError`` when there is none, ``ValueError`` when it is no node."""
    found = os.lstat(path)
    for of_type, letter in ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b"), (stat.S_ISFIFO, "p")):
        if of_type(found.st_mode):
            return HostNode(type=letter, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))
    raise ValueError(f"{path} is not a device node")


def _directory_files(directory: Path, priority: int) -> list[SpecFile]:
    if directory.is_symlink():
        return [SpecFile(path=str(directory), priority=priority, unreadable="is a link, which runtimes do not follow")]
    try:
        with os.scandir(directory) as entries:
            # As runtimes do it: no search in subdirectories, and a link is a file whatever it leads to.
            paths = sorted(directory / entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [SpecFile(path=str(directory), priority=priority, unreadable=f"cannot be listed: {error.strerror}")]
    return [_spec_file(path, priority) for path in paths if path.suffix in EXTENSIONS]


def _spec_file(path: Path, priority: int) -> SpecFile:
    try:
        return SpecFile(path=str(path), priority=priority, text=_text(path))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError as error:
        reason = f"cannot be read: {error}"
    return SpecFile(path=str(path), priority=priority, unreadable=reason)


def _text(path: Path) -> str:
    # Without O_NONBLOCK a pipe under a spec's name would hold the reader for ever.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a regular file")
        content = opened.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise ValueError(f"larger than {MAX_SIZE} bytes")
    return content.decode("utf-8")


FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
"""Set whatever the umask: runtimes and people of any user read specs."""
_TEMPORARY = ".writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The system calls that change something. Those of ``os``, but in tests, where they fail one at a time."""

    mkdir: Callable[[Path, int], None] = os.mkdir
    open: Callable[[Path, int, int], int] = os.open
    write: Callable[[int, bytes], int] = os.write
    fchmod: Callable[[int, int], None] = os.fchmod
    fsync: Callable[[int], None] = os.fsync
    rename: Callable[[Path, Path], None] = os.rename
    unlink: Callable[[Path], None] = os.unlink


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The names of files that were written and removed. Both empty: the directory was as it should be."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Store:
    """The files in ``directory`` whose names start with ``prefix``. One process at a time owns a prefix."""

    def __init__(self, directory: Path, prefix: str, calls: Calls | None = None) -> None:
        if not prefix or "/" in prefix or prefix.startswith("."):
            raise ValueError(f'prefix "{prefix}" must be the start of a file name, such as "example-"')
        self.directory = directory
        self.prefix = prefix
        self._calls = calls or Calls()

    def path(self, name: str) -> Path:
        """Where the spec ``name`` lies. ``ValueError`` when it is not ours, or not the name of a spec."""
        if not name.startswith(self.prefix) or "/" in name or not name.endswith(EXTENSIONS):
            raise ValueError(
                f'"{name}" is not a spec of this store: it must start with "{self.prefix}" and end with '
                f"{' or '.join(EXTENSIONS)}"
            )
        return self.directory / name

    def names(self) -> tuple[str, ...]:
        """The names of our specs in the directory."""
        return tuple(name for name in self._listed() if name.startswith(self.prefix) and name.endswith(EXTENSIONS))

    def sync(self, wanted: Mapping[str, str]) -> Changes:
        """Make the directory hold ``wanted`` (name to text) of ours and nothing else of ours.

        ``StoreError`` at the first thing that fails. New specs are written before old ones are removed.
        """
        self.clean()
        written = tuple(name for name, text in wanted.items() if self.write(name, text))
        return Changes(written=written, removed=self.remove_others(wanted))

    def write(self, name: str, text: str) -> bool:
        """Write one spec. False: it was there already, with this text and mode. ``StoreError`` keeps the old one."""
        path, content = self.path(name), text.encode()
        if _holds(path, content):
            return False
        temporary = self.directory / f".{name}{_TEMPORARY}"
        try:
            self._make_directory()
            self._write_new(temporary, content)
            self._calls.rename(temporary, path)
        except OSError as error:
            with suppress(OSError):
                self._calls.unlink(temporary)
            raise _store_error(f"cannot write {path}", error, self.directory) from error
        self._flush_directory()
        return True

    def remove_others(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Remove the specs of ours that are not among ``wanted``; those that were removed."""
        return self._remove([name for name in self.names() if name not in wanted])

    def clean(self) -> tuple[str, ...]:
        """Remove what an interrupted write of ours has left; those names."""
        start = f".{self.prefix}"
        return self._remove([name for name in self._listed() if name.startswith(start) and name.endswith(_TEMPORARY)])

    def _listed(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.directory.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _store_error(f"cannot list {self.directory}", error, self.directory) from error

    def _remove(self, names: list[str]) -> tuple[str, ...]:
        for name in names:
            try:
                with suppress(FileNotFoundError):
                    self._calls.unlink(self.directory / name)
            except OSError as error:
                raise _store_error(f"cannot remove {self.directory / name}", error, self.directory) from error
        if names:
            self._flush_directory()
        return tuple(names)

    def _make_directory(self) -> None:
        """The directory itself, not its parents: where those are missing, a host path is not mounted."""
        with suppress(FileExistsError):
            self._calls.mkdir(self.directory, DIRECTORY_MODE)
            self.directory.chmod(DIRECTORY_MODE)

    def _write_new(self, temporary: Path, content: bytes) -> None:
        with suppress(FileNotFoundError):
            self._calls.unlink(temporary)
        file = self._calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[self._calls.write(file, bytes(rest)) :]
            self._calls.fchmod(file, FILE_MODE)
            self._calls.fsync(file)
        finally:
            os.close(file)

    def _flush_directory(self) -> None:
        """Let a change survive a power failure. Every reader sees it already, so a failure here is no error."""
        with suppress(OSError):
            file = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._calls.fsync(file)
            finally:
                os.close(file)


def _holds(path: Path, content: bytes) -> bool:
    """Whether ``path`` is a regular file with this content that everybody can read."""
    try:
        found = path.lstat()
        same = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == FILE_MODE
        return same and found.st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def _store_error(what: str, error: OSError, directory: Path) -> StoreError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            hint = "free space on its file system"
        case errno.EROFS:
            hint = "mount it for writing"
        case errno.EACCES | errno.EPERM:
            hint = "let this user write there, or run as root"
        case errno.ENOENT:
            hint = f"create {directory.parent}, or mount it from the host"
        case errno.ENOTDIR:
            hint = "remove the file that stands where a directory should"
        case _:
            hint = "see the kernel's log for its file system"
    return StoreError(f"{what}: {error.strerror or error}", hint=hint)
