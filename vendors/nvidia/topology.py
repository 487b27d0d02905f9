"""How well two cards are connected: HAMi's score, and the label that ``nvidia-smi topo -m`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.model.links import Link

LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100
# The most that HAMi's score knows. HAMi scores more links than these as none; we score them as these.
MAX_LANES = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One NVLink of a card that is up. ``peer`` is the PCI address at its other end, as far as it is visible."""

    peer: str = ""
    switch: bool = False


def lanes(ports: Sequence[Port], peer: str, peer_ports: Sequence[Port]) -> int:
    """Count the NVLinks from the card with ``ports`` to the card at PCI address ``peer``.

    Without a direct one, cards behind NVSwitch reach each other with the links of the one that has fewer.
    """
    direct = sum(1 for port in ports if port.peer == peer)
    if direct:
        return direct
    return min(sum(port.switch for port in ports), sum(port.switch for port in peer_ports))


def link(level: str, count: int) -> Link:
    """Score a pair: its PCIe or host level (``PIX``, ``SYS``, …) plus 100 for each NVLink. An unknown level adds 0."""
    return Link(
        score=LEVEL_SCORES.get(level, 0) + LANE_SCORE * min(max(count, 0), MAX_LANES),
        label=f"NV{count}" if count > 0 else level,
        level=level,
        lanes=max(count, 0),
    )


def measured(
    levels: Mapping[tuple[str, str], str], ports: Mapping[str, Sequence[Port]], addresses: Mapping[str, str]
) -> dict[tuple[str, str], Link]:
    """Put levels and NVLinks together, one link for each direction that has a level."""
    return {
        (a, b): link(level, lanes(ports.get(a, ()), addresses[b], ports.get(b, ()))) for (a, b), level in levels.items()
    }
