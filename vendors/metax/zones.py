"""Link zones: the GPUs of one zone reach each other over MetaXLink. Zone 0 means none, and so do negative ones.

Whole GPUs come from the smallest zone that has enough, which leaves the larger ones whole; else across zones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, product

from hami_plugin.scheduler.engine.devices import Candidate, Context, DeviceState
from hami_plugin.scheduler.engine.policy import Decision, enough

LINK = 10
"""What a pair within a zone is worth."""


def zone(state: DeviceState) -> int:
    value = state.notes.get("LinkZone", 0)
    return value if isinstance(value, int) else 0


@enough
def within_zone(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """The smallest zone with enough; else one zone after the other, smallest first; then GPUs without a zone."""
    members: dict[int, list[Candidate]] = {}
    for candidate in eligible:
        members.setdefault(max(0, zone(candidate.state)), []).append(candidate)
    alone, count = members.pop(0, []), context.demand.count
    zones = sorted(members.values(), key=len)
    suitable = next((group for group in zones if len(group) >= count), None)
    return (suitable or [one for group in (*zones, alone) for one in group])[:count]


def linked_score(decision: Decision) -> float:
    """Ten times the links within the grant, less those that it cuts among the GPUs that were idle."""
    zones = {state.uuid: zone(state) for state in decision.before}
    granted = [grant.uuid for piece in decision.pieces for grant in piece if grant.cores == 100]
    idle = [state.uuid for state in decision.before if not state.slots]
    rest = [uuid for uuid in idle if uuid not in granted]
    before, own, after = (links([(uuid, zones.get(uuid, 0)) for uuid in some]) for some in (idle, granted, rest))
    return 10 * own - (before - own - after)


def links(devices: Iterable[tuple[str, int]]) -> int:
    """What all pairs are worth, each device with its zone."""
    pairs = combinations(devices, 2)
    return sum(LINK for (one, a), (other, b) in pairs if a == b != 0 and one != other)


def connected(linked: AbstractSet[tuple[int, int]], numbers: Collection[int]) -> Mapping[int, int]:
    """The zone of each GPU that has a link, counted from 1 by its first GPU; 0 for the others."""
    zones: dict[int, int] = {}
    beside: defaultdict[int, set[int]] = defaultdict(set)
    for a, b in linked:
        beside[a].add(b)
        beside[b].add(a)
    for number in sorted(numbers):
        if number in zones or number not in beside:
            continue
        zone, reached = max(zones.values(), default=0) + 1, [number]
        while reached:
            one = reached.pop()
            if one not in zones:
                zones[one] = zone
                reached += beside[one]
    return {number: zones.get(number, 0) for number in numbers}


def forecast_tables(free: Sequence[int]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """By how many GPUs a pod gets: what they are worth to each other at best, and the links that are cut at least.

    ``free`` has the zone of each GPU that is free.
    """
    sizes = [free.count(zone) for zone in sorted({*free} - {0})]
    alone = free.count(0)
    worth: dict[str, int] = {}
    cuts: dict[str, int] = {}
    for taken in product(*(range(size + 1) for size in sizes)):
        own = sum(LINK * k * (k - 1) // 2 for k in taken)
        cut = sum(LINK * k * (size - k) for k, size in zip(taken, sizes, strict=True))
        for others in range(alone + 1):
            key = str(sum(taken) + others)
            worth[key] = max(own, worth.get(key, 0))
            cuts[key] = min(cut, cuts.get(key, cut))
    wanted = [str(number) for number in range(1, len(free) + 1)]
    return {key: worth[key] for key in wanted}, {key: cuts[key] for key in wanted}
