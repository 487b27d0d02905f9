"""Whether a path still leads to the file that it led to before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file a path leads to. The time is part of it since a new file often gets a freed inode number."""

    device: int
    inode: int
    modified_ns: int = 0

    @classmethod
    def of(cls, path: Path) -> Identity | None:
        """None when there is nothing, or nothing that we may look at."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns)

    @classmethod
    def of_directory(cls, path: Path) -> Identity | None:
        """As ``of``, without the time, which changes with every entry."""
        found = cls.of(path) if path.is_dir() else None
        return cls(found.device, found.inode) if found else None
