"""Enflame's simulated machines, in the mode that a test asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.rigs import Rig, rig
from vendors.enflame import VENDOR
from vendors.enflame.rules import NAMES

PROFILE = "enflame-s60-8"


def machine(way: str, root: Path, **settings: object) -> Rig:
    """With the family that is served this way. Partitions are cut beforehand: two, of the last card."""
    found = rig(PROFILE, root, serve=way, **{"cut": "beforehand", **settings})
    if way == "partitions":
        found.simulator.inject("partitions")
        for _ in range(2):
            found.simulator.inject("cut", 7, 2)
    device_type, _ = NAMES[way]
    return replace(
        found, family=next(one for one in VENDOR.families(found.settings) if one.resources.device_type == device_type)
    )
