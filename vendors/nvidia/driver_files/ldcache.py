"""The dynamic loader's list of libraries, ``ld.so.cache``, in the format of glibc since 2.2.

A file is a header of 48 bytes (magic, number of entries, length of the names), entries of 24 bytes (flags, and where
the name and the path begin, counted from the header), and the names. Older systems put a list in a format of their
own in front of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("<20sII20x")
ENTRY = struct.Struct("<iIIIQ")

LIBC6 = 0x0003
MACHINES_64 = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500}
"""The flags of 64-bit libraries, on the machines that the driver exists for."""
_MACHINE_BITS = 0xFF00


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A library by the name that programs ask for, and its file."""

    name: str
    path: str


def read(content: bytes) -> Iterator[Entry]:
    """The 64-bit libraries in a cache, in its order. ValueError says what is wrong with the file."""
    start = content.find(MAGIC)
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
            yield Entry(name=_text(content, start + name), path=_text(content, start + path))


def _text(content: bytes, start: int) -> str:
    end = content.find(b"\0", start)
    if not 0 <= start < end:
        raise ValueError(f"a name begins at byte {start}, where none ends")
    return content[start:end].decode(errors="replace")
