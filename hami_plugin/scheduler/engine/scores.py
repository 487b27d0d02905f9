"""What a node is worth for a decision. Spread takes the lowest, every other node policy the highest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.scheduler.engine.devices import DeviceState, Piece, abbreviate
from hami_plugin.scheduler.engine.requests import Demand, Invalid


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


WEIGHTS_KEY = "hami.io/device-scoring-weights"
_WEIGHT = re.compile(r"[0-9]{1,9}")

Key = Callable[[DeviceState], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


EVEN = Weights()


def weights(annotations: Mapping[str, str]) -> Weights | Invalid:
    """The pod's weights: all three as whole numbers of up to nine digits, one of them above 0; even ones when it names
    none.
    """
    text = annotations.get(WEIGHTS_KEY)
    if text is None:
        return EVEN
    fields = [tuple(part.strip() for part in item.split("=", 1)) for item in text.split(",", 3)]
    given = {field[0]: field[1] for field in fields if len(field) == 2 and _WEIGHT.fullmatch(field[1])}
    values = {name: int(number) for name, number in given.items()}
    if len(fields) != 3 or set(values) != {"slot", "core", "memory"} or not any(values.values()):
        why = "is not as slot=1,core=1,memory=3: whole numbers from 0 to 999999999, one of them above 0"
        return Invalid(resource=WEIGHTS_KEY, text=abbreviate(text), why=why)
    return Weights(**values)


def score(state: DeviceState, demands: Sequence[Demand], weighing: Weights = EVEN) -> float:
    """How full the device would be, 10 for each dimension with weight 1; 0 for a device without slots.

    Memory or cores do not count where the device has none.
    """
    return device_scorer(demands, weighing)(state)


def device_scorer(demands: Sequence[Demand], weighing: Weights = EVEN) -> Callable[[DeviceState], float]:
    """``score`` for one device after the other: the demands are added up once."""
    slots, cores = len(demands), sum(demand.cores for demand in demands)
    memory = sum(demand.memory or 0 for demand in demands if not demand.percent)
    percents = [demand.percent for demand in demands if demand.percent]
    by_slots, by_cores, by_memory = 10 * weighing.slot, 10 * weighing.core, 10 * weighing.memory

    def scored(state: DeviceState) -> float:
        info = state.info
        if not info.count:
            return 0.0
        full = by_slots * (state.slots + slots) / info.count
        if info.devcore:
            full += by_cores * (state.cores + cores) / info.devcore
        if info.devmem:
            more = memory + sum(info.devmem * percent // 100 for percent in percents) if percents else memory
            full += by_memory * (state.memory + more) / info.devmem
        return round(full, 9)  # so that devices that are equally full are equal in spite of binary fractions

    return scored


def ordered(
    states: Sequence[DeviceState],
    orders: Sequence[str],
    full: Callable[[DeviceState], float],
    *,
    numa_first: bool = False,
) -> tuple[DeviceState, ...]:
    """The devices, best last; ``full`` scores how full each is.

    ``binpack`` fills the fullest, ``spread`` (and a single order that is none of these) the emptiest, ``mutex`` takes
    those with the fewest slots in use, ``numa`` keeps NUMA nodes together; ``numa_first`` does so before the orders.
    Several orders decide one after the other, then the index; after a single order equal devices keep their order.
    """
    keys: dict[str, Callable[[DeviceState], float]] = {
        "numa": lambda state: state.info.numa,
        "binpack": full,
        "spread": lambda state: -full(state),
    }
    if len(orders) == 1 and orders[0] != "numa":
        return tuple(sorted(states, key=_single(orders[0], full, numa_first=numa_first)))
    known = [order for order in orders if order in keys] or ["spread"]
    chain = [keys[order] for order in dict.fromkeys(["numa", *known] if numa_first else known)]
    return tuple(sorted(states, key=lambda state: (*(key(state) for key in chain), state.index)))


def _single(order: str, full: Callable[[DeviceState], float], *, numa_first: bool) -> Key:
    match order, numa_first:
        case "mutex", _:
            return lambda state: (-state.slots, state.info.numa)
        case "binpack", False:
            return lambda state: (full(state), state.info.numa)
        case "binpack", True:
            return lambda state: (-state.info.numa, full(state))
        case _, False:
            return lambda state: (-full(state), state.info.numa)
    return lambda state: (state.info.numa, -full(state))
