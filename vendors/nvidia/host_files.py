"""A file system of the host that this process sees at another place, and the cache of its dynamic loader.

A cache of glibc since 2.2 is a header of 48 bytes (magic, number of entries, length of the names), entries of 24 bytes
(flags, and where the name and the path begin, counted from the header), and the names. Older systems put a list in a
format of their own in front of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

MAX_LINKS = 40
"""As many as the kernel follows before it calls them a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootedTree:
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


CACHE_MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("<20sII20x")
ENTRY = struct.Struct("<iIIIQ")

LIBC6 = 0x0003
MACHINES_64 = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500}
"""The flags of 64-bit libraries, on the machines that the driver exists for."""
_MACHINE_BITS = 0xFF00


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLibrary:
    """A library by the name that programs ask for, and its file."""

    name: str
    path: str


def loader_entries(content: bytes) -> Iterator[CachedLibrary]:
    """The 64-bit libraries in a cache, in its order. ValueError says what is wrong with the file."""
    start = content.find(CACHE_MAGIC)
    if start < 0:
        raise ValueError("it has no list in glibc's format")
    if len(content) < start + HEADER.size:
        raise ValueError("its header is cut off")
    _magic, count, _length = HEADER.unpack_from(content, start)
    first = start + HEADER.size
    if len(content) < first + count * ENTRY.size:
        raise ValueError(f"it is cut off: {len(content)} bytes do not hold its {count} entries")
    for number in range(count):
        flags, name, path, _version, _hardware = ENTRY.unpack_from(content, first + number * ENTRY.size)
        if flags & _MACHINE_BITS in MACHINES_64.values() and flags & LIBC6 == LIBC6:
            yield CachedLibrary(name=_text(content, start + name), path=_text(content, start + path))


def _text(content: bytes, start: int) -> str:
    end = content.find(b"\0", start)
    if not 0 <= start < end:
        raise ValueError(f"a name begins at byte {start}, where none ends")
    return content[start:end].decode(errors="replace")
