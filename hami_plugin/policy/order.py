"""In which order devices are tried. The walk starts at the end of the list: the best device stands last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.policy.charges import memory_of
from hami_plugin.policy.demand import Demand, Invalid
from hami_plugin.policy.states import DeviceState

WEIGHTS_KEY = "hami.io/device-scoring-weights"

Key = Callable[[DeviceState], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


EVEN = Weights()


def weights(annotations: Mapping[str, str]) -> Weights | Invalid:
    """The pod's weights: all three as whole numbers from 0, one of them above 0; even ones when it names none."""
    text = annotations.get(WEIGHTS_KEY)
    if text is None:
        return EVEN
    fields = [tuple(part.strip() for part in item.split("=", 1)) for item in text.split(",")]
    given = {field[0]: field[1] for field in fields if len(field) == 2 and field[1].isdecimal() and field[1].isascii()}
    values = {name: int(number) for name, number in given.items()}
    if len(fields) != 3 or set(values) != {"slot", "core", "memory"} or not any(values.values()):
        why = "is not as slot=1,core=1,memory=3: whole numbers from 0, one of them above 0"
        return Invalid(resource=WEIGHTS_KEY, text=text, why=why)
    return Weights(**values)


def score(state: DeviceState, demands: Sequence[Demand], weighing: Weights = EVEN) -> float:
    """How full the device would be, 10 for each dimension with weight 1; 0 for a device without slots.

    Memory or cores do not count where the device has none.
    """
    info = state.info
    if not info.count:
        return 0.0
    cores = sum(demand.cores for demand in demands)
    memory = sum(_weighed(demand, state) for demand in demands)
    parts = (
        (weighing.slot, state.slots + len(demands), info.count),
        (weighing.core, state.cores + cores, info.devcore),
        (weighing.memory, state.memory + memory, info.devmem),
    )
    # Rounded, so that devices that are equally full are equal in spite of binary fractions.
    return round(sum(10 * weight * used / total for weight, used, total in parts if total), 9)


def ordered(
    states: Sequence[DeviceState],
    words: Sequence[str],
    full: Callable[[DeviceState], float],
    *,
    numa_first: bool = False,
) -> tuple[DeviceState, ...]:
    """The devices, best last; ``full`` scores how full each is.

    ``binpack`` fills the fullest, ``spread`` (and a single word of no meaning here) the emptiest, ``mutex`` takes
    those with the fewest slots in use, ``numa`` keeps NUMA nodes together; ``numa_first`` does so before the words.
    Several words decide one after the other, then the index; after a single word equal devices keep their order.
    """
    by_word: dict[str, Callable[[DeviceState], float]] = {
        "numa": lambda state: state.info.numa,
        "binpack": full,
        "spread": lambda state: -full(state),
    }
    if len(words) == 1 and words[0] != "numa":
        return tuple(sorted(states, key=_single(words[0], by_word, numa_first=numa_first)))
    known = [word for word in words if word in by_word] or ["spread"]
    chain = [by_word[word] for word in dict.fromkeys(["numa", *known] if numa_first else known)]
    return tuple(sorted(states, key=lambda state: (*(word(state) for word in chain), state.index)))


def _single(word: str, by_word: Mapping[str, Callable[[DeviceState], float]], *, numa_first: bool) -> Key:
    if word == "mutex":
        return lambda state: (-state.slots, state.info.numa)
    fullness = by_word["binpack" if word == "binpack" else "spread"]
    if not numa_first:
        return lambda state: (fullness(state), state.info.numa)
    away = -1 if word == "binpack" else 1
    return lambda state: (away * state.info.numa, fullness(state))


def _weighed(demand: Demand, state: DeviceState) -> int:
    return state.info.devmem * demand.percent // 100 if demand.percent else memory_of(demand, state)
