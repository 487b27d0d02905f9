"""Where on a card a MIG instance goes: the smallest profile that is large enough, and the place that hinders least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.policy.booking import Booked, booked, taken
from hami_plugin.policy.charges import asked
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import Candidate, Charge, Context, DeviceState, Slice
from hami_plugin.wire.nodes import MigProfile

MODE = "mig"


def cut(state: DeviceState) -> bool:
    """The card is cut into MIG instances."""
    return state.info.mode == MODE


def choose(profiles: Sequence[MigProfile], occupied: Sequence[Slice], memory: int) -> tuple[MigProfile, Slice] | None:
    """The smallest profile, by memory and slices, that has so much memory and a free place."""
    for profile in sorted(profiles, key=lambda profile: (profile.memory, profile.slices)):
        place = next(_free_places(profile, occupied), None) if profile.memory >= memory else None
        if place:
            return profile, place
    return None


def can_place(profiles: Sequence[MigProfile], occupied: Sequence[Slice], names: Sequence[str]) -> bool:
    """Whether there is any way to place instances of all these profiles."""
    if not names:
        return True
    profile = next((profile for profile in profiles if profile.name == names[0]), None)
    places = _free_places(profile, occupied) if profile else ()
    return any(can_place(profiles, (*occupied, place), names[1:]) for place in places)


def charge(state: DeviceState, context: Context, eligible: Sequence[Candidate]) -> Charge:
    """As asked. A percentage of a card that is cut never means more than its largest instance."""
    bill = asked(state, context, eligible)
    if context.demand.memory or not cut(state) or not state.info.mig_profiles:
        return bill
    return replace(bill, memory=min(bill.memory, max(profile.memory for profile in state.info.mig_profiles)))


def has_place(candidate: Candidate, _context: Context, eligible: Sequence[Candidate]) -> Reason | None:
    """There is a place for one more instance beside those that this container may get on the same card."""
    state = candidate.state
    if not cut(state):
        return None
    occupied = list(state.slices)
    for share in (*(other for other in eligible if other.uuid == state.uuid), candidate):
        found = choose(state.info.mig_profiles, occupied, share.charge.memory)
        if found is None:
            return Reason.NO_MIG_PLACE
        occupied.append(found[1])
    return None


def book(state: DeviceState, grant: Grant, pod: PodView) -> Booked | Reason:
    """On a card that is cut, an instance with all its memory and cores is taken, whatever part of it was asked for."""
    if not cut(state):
        return booked(state, grant, pod)
    found = choose(state.info.mig_profiles, state.slices, grant.memory)
    if found is None:
        return Reason.NO_MIG_PLACE
    profile, place = found
    notes = {"migProfile": place.profile, "migPlacement": {"start": place.start, "size": place.size}}
    grant = replace(grant, memory=profile.memory, cores=profile.cores, notes={**(grant.notes or {}), **notes})
    return replace(taken(state, grant), slices=(*state.slices, place)), grant


def _free_places(profile: MigProfile, occupied: Sequence[Slice]) -> Iterator[Slice]:
    """1g and 3g from the top, the others from the bottom: the wide places in the middle stay free for longest."""
    from_top = profile.name.startswith(("1g.", "3g."))
    for start, size in sorted(profile.placements, key=lambda place: place[0], reverse=from_top):
        if all(start + size <= other.start or other.start + other.size <= start for other in occupied):
            yield Slice(profile=profile.name, start=start, size=size)
