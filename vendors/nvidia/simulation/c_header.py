"""The state file in C: ``native/state.h`` as it follows from the records.

A test compares the two, and ``LAYOUT`` (a checksum) stands in every state file and in every library, so that a file of
another layout is refused instead of misread.
"""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from vendors.nvidia.simulation import limits
from vendors.nvidia.simulation.layout import RECORDS

_LIMITS = ("DEVICES", "LINKS", "PROFILES", "STARTS", "INSTANCES", "PROCESSES", "EVENTS", "FAILURES")
_C_TYPES = {
    ctypes.c_uint8: "uint8_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_char: "char",
}


def _declarations() -> Iterator[str]:
    for name in _LIMITS:
        yield f"#define SIM_{name} {getattr(limits, name)}"
    yield f'#define SIM_MAGIC "{limits.MAGIC.decode()}"'
    yield f"#define SIM_NONE {limits.NONE:#x}u"
    for name in ("DRIVER_LOADED", "DRIVER_GONE", "DRIVER_MISMATCH"):
        yield f"#define {name} {getattr(limits, name)}"
    for cls in RECORDS:
        yield ""
        yield "typedef struct {"
        for name, kind in getattr(cls, "_fields_"):  # noqa: B009  # typeshed types the entries as pairs or triples
            yield f"    {_declared(name, kind)};"
        yield f"}} {_c_name(cls)};"
        yield f'_Static_assert(sizeof({_c_name(cls)}) == {ctypes.sizeof(cls)}, "layout.py and the compiler differ");'


def _declared(name: str, kind: Any) -> str:
    length = getattr(kind, "_length_", None)
    element = kind if length is None else kind._type_
    text = _C_TYPES.get(element) or _c_name(element)
    return f"{text} {name}" + (f"[{length}]" if length is not None else "")


def _c_name(cls: type[ctypes.Structure]) -> str:
    return "sim" + re.sub(r"([A-Z])", r"_\1", cls.__name__).lower()


_BODY = "\n".join(_declarations())
LAYOUT: Final = zlib.crc32(_BODY.encode())
"""What a state file and a library must agree on."""

C_HEADER: Final = f"""/* The state file. Written by c_header.py from layout.py and parts.py: change it there, then
   python -c "from vendors.nvidia.simulation.c_header import C_HEADER; print(C_HEADER, end='')" */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdint.h>

#define SIM_LAYOUT {LAYOUT:#010x}u
{_BODY}

#endif
"""
