"""What a node is worth for a decision. Spread takes the lowest, every other node policy the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.policy.states import DeviceState, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a family would give a pod on a node. ``before`` are its devices without it; ``order`` the node policy."""

    node: NodeView
    pod: PodView
    pieces: Sequence[Piece]
    before: Sequence[DeviceState]
    order: str = "binpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A score of which more is better under every node policy. It outweighs how full the node is."""

    value: float


Score = Callable[[Decision], float | Ranking]


def neutral(_decision: Decision) -> float:
    """The family does not care which node it is."""
    return 0.0


def fullness(states: Sequence[DeviceState]) -> float:
    """How much of a node's slots, cores and memory is taken, 10 for all of each; 0 when it has none of one of them."""
    counts = devcores = devmem = slots = cores = memory = 0
    for state in states:
        info = state.info
        counts, devcores, devmem = counts + info.count, devcores + info.devcore, devmem + info.devmem
        slots, cores, memory = slots + state.slots, cores + state.cores, memory + state.memory
    return 10.0 * (slots / counts + cores / devcores + memory / devmem) if counts and devcores and devmem else 0.0


def share_together(pieces: Sequence[Piece], key: Callable[[str], object | None]) -> float:
    """The largest part of each container's devices that is in one group, from 0 to 1, added up."""
    worth = 0.0
    for piece in filter(None, pieces):
        groups = [key(grant.uuid) for grant in piece]
        worth += max((groups.count(group) for group in groups if group is not None), default=0) / len(piece)
    return worth
