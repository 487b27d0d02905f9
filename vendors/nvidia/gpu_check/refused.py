"""A call that NVML refused, as an answer like any other."""

from __future__ import annotations

from dataclasses import dataclass

NO_PERMISSION, NO_FUNCTION = 4, 13
"""NVML's numbers; the second also where the driver or the binding is older than the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``code`` is NVML's number, ``name`` its word, such as ``NotSupported``."""

    code: int
    name: str
