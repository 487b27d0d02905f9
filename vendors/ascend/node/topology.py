"""How well two NPUs are connected, from DCMI's numbers, which are names and no distances."""

from __future__ import annotations

from hami_plugin.model.links import Link

LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100
FABRIC = {3: "HCCS", 6: "SIO", 7: "HCCS_SW"}
"""Chip to chip, inside one card, and through a switch."""
LEVELS = {1: "SYS", 2: "PHB", 4: "PXB", 5: "PIX"}


def link(kind: int, *, same_numa: bool) -> Link:
    """A pair's connection. Where the fabric hides the PCIe level, the NUMA nodes tell as much as is known of it.

    ValueError for a number that DCMI has not had so far.
    """
    if kind in FABRIC:
        level = "INT" if FABRIC[kind] == "SIO" else "NODE" if same_numa else "SYS"
        return Link(score=LEVEL_SCORES[level] + LANE_SCORE, label=FABRIC[kind], level=level, lanes=1)
    if kind not in LEVELS:
        raise ValueError(f"DCMI names an unknown connection, {kind}")
    level = LEVELS[kind]
    return Link(score=LEVEL_SCORES[level], label=level, level=level)
