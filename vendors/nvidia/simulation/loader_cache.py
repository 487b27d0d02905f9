"""A machine's ``ld.so.cache``, written as glibc's ``ldconfig`` writes it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

X86_64_LIBC6 = 0x0303


def loader_cache(libraries: Mapping[str, str]) -> bytes:
    """The file that lists 64-bit libraries: paths by the names that programs ask for."""
    header_size, entry_size = 48, 24
    texts = bytearray()
    start = header_size + entry_size * len(libraries)
    entries = bytearray()
    for name in sorted(libraries, reverse=True):
        places = []
        for text in (name, libraries[name]):
            places.append(start + len(texts))
            texts += text.encode() + b"\0"
        entries += struct.pack("<iIIIQ", X86_64_LIBC6, *places, 0, 0)
    little_endian = 2
    header = struct.pack("<17s3sIIB3xI12x", b"glibc-ld.so.cache", b"1.1", len(libraries), len(texts), little_endian, 0)
    return header + bytes(entries) + bytes(texts)
