"""Whether a path still leads to the file that it led to before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file a path leads to. The time is part of it since a new file often gets a freed inode number."""

    device: int
    inode: int
    modified_ns: int = 0

    @classmethod
    def of(cls, path: Path) -> Identity | None:
        """None when there is nothing, or nothing that we may look at."""
        found = _status(path)
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns) if found else None

    @classmethod
    def of_directory(cls, path: Path) -> Identity | None:
        """As ``of``, without the time, which changes with every entry."""
        found = _status(path)
        return cls(found.st_dev, found.st_ino) if found and S_ISDIR(found.st_mode) else None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
