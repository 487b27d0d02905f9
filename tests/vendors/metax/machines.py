"""MetaX's simulated machines, in the mode that a test asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.rigs import Rig, rig
from vendors.metax import VENDOR


def machine(profile: str, root: Path, **settings: Any) -> Rig:
    """With the family that the mode offers."""
    made = rig(profile, root, **settings)
    whole, shared = VENDOR.families(made.settings)
    return replace(made, family=whole if made.settings.mode == "native" else shared)
