"""A file system of the host that this process sees at another place, with the host's own meaning of its links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

MAX_LINKS = 40
"""As many as the kernel follows before it calls them a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """``host`` is a root directory by the host's name for it, ``view`` the same one as this process reaches it.

    Paths in the tree are absolute, ``host`` left out: links in it lead where they would lead after a chroot.
    """

    host: Path
    view: Path

    def named(self, path: str) -> str:
        """The host's name of a path in the tree."""
        return str(self.host / path.lstrip("/"))

    def seen(self, path: str) -> Path:
        """The same path as this process reaches it. Links in it are not taken care of; see ``real``."""
        return self.view / path.lstrip("/")

    def real(self, path: str) -> str | None:
        """Where a path leads when every link is followed. None when there is nothing, or only a loop."""
        done, rest, links = "", _parts(path), 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            try:
                target = str(self.seen(f"{done}/{part}").readlink())
            except OSError:  # no link: a file, a directory, or nothing
                done = f"{done}/{part}"
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            done = "" if target.startswith("/") else done
            rest = [*_parts(target), *rest]
        return done or "/" if os.path.lexists(self.seen(done)) else None

    def names(self, folder: str) -> Sequence[str]:
        """What is in a folder, sorted; nothing when there is none."""
        real = self.real(folder)
        try:
            return sorted(entry.name for entry in self.seen(real).iterdir()) if real else ()
        except OSError:
            return ()

    def folders(self, pattern: str) -> Iterator[str]:
        """The folders that fit a pattern of the shell's kind, by the path that fits."""
        found = [""]
        for part in _parts(pattern):
            found = [f"{above}/{name}" for above in found for name in self._fitting(above or "/", part)]
        return (path for path in found if (real := self.real(path)) and self.seen(real).is_dir())

    def is_file(self, path: str) -> bool:
        real = self.real(path)
        return real is not None and self.seen(real).is_file()

    def _fitting(self, folder: str, pattern: str) -> Sequence[str]:
        if not any(sign in pattern for sign in "*?["):
            return [pattern]
        return [name for name in self.names(folder) if fnmatch(name, pattern)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
