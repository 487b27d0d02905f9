"""Link zones: the GPUs of one zone reach each other over MetaXLink. Zone 0 means none, and so do negative ones.

Whole GPUs come from the smallest zone that has enough, which leaves the larger ones whole; else across zones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from hami_plugin.policy.scores import Decision
from hami_plugin.policy.selectors import enough
from hami_plugin.policy.states import Candidate, Context, DeviceState

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
