"""The files of the spec directories, read once, with the reason for each that cannot be read.

This module and the store are the only ones that touch the file system.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from cdi.documents import EXTENSIONS, YamlReader
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
