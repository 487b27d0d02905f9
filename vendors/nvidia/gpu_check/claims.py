"""What the simulation claims, read from the file that is generated from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("claims.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """``structs`` by C name: size, offsets, version word. ``models`` by NVML's name: fact → every value it may have."""

    codes: Mapping[str, int]
    structs: Mapping[str, Mapping[str, Any]]
    symbols: Sequence[str]
    models: Mapping[str, Mapping[str, Sequence[Any]]]
    mig: Mapping[str, Mapping[str, Any]]

    def code(self, name: str) -> int:
        """NVML's number for a refusal, such as ``NOT_FOUND``."""
        return self.codes[name]


def load(path: Path = FILE) -> Claims:
    return Claims(**json.loads(path.read_text(encoding="utf-8")))
