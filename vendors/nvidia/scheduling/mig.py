"""Where on a card a MIG instance goes: the smallest profile that is large enough, and the place that hinders least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.mig import MigAllocation, decode_mig, encode_mig
from hami_plugin.protocol.register import MigProfile
from hami_plugin.scheduler.engine.devices import (
    Booked,
    Candidate,
    Charge,
    Context,
    DeviceState,
    Given,
    Slice,
    asked,
    booked,
    restored,
    taken,
)
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.sdk import Family, both_keys

MODE = "mig"
ALLOCATIONS = "hami.io/vgpu-mig-allocations"
"""Where a pod's instances are, by container and device."""


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
    return bill._replace(memory=min(bill.memory, max(profile.memory for profile in state.info.mig_profiles)))


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


def restore(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """What a pod has already. Its instances are where its annotation says, else where they would be put now."""
    after = restored(state, grant, pod)
    if not cut(state):
        return after
    known = [one for one in _recorded(pod) if one.uuid == state.uuid]
    places = [Slice(profile=one.profile, start=one.start, size=one.size) for one in known]
    for _ in range(0 if places else max(1, grant.slots)):
        found = choose(state.info.mig_profiles, (*state.slices, *places), grant.memory // max(1, grant.slots))
        places += [found[1]] if found else []
    return replace(after, slices=(*state.slices, *places))


def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
    """The usual two annotations, and where the instances are, if there are any."""
    placed = [
        MigAllocation(
            container=position,
            device=number,
            uuid=grant.uuid,
            profile=grant.notes["migProfile"],
            start=grant.notes["migPlacement"]["start"],
            size=grant.notes["migPlacement"]["size"],
        )
        for position, piece in enumerate(given[family.device_type])
        for number, grant in enumerate(piece)
        if grant.notes and "migProfile" in grant.notes
    ]
    return {**both_keys(family, pod, given), **({ALLOCATIONS: encode_mig(placed)} if placed else {})}


def _recorded(pod: PodView) -> tuple[MigAllocation, ...]:
    try:
        return decode_mig(pod.annotations.get(ALLOCATIONS, ""))
    except WireError:  # as if it were missing: then the places are guessed
        return ()


def _free_places(profile: MigProfile, occupied: Sequence[Slice]) -> Iterator[Slice]:
    """1g and 3g from the top, the others from the bottom: the wide places in the middle stay free for longest."""
    from_top = profile.name.startswith(("1g.", "3g."))
    for start, size in sorted(profile.placements, key=lambda place: place[0], reverse=from_top):
        if all(start + size <= other.start or other.start + other.size <= start for other in occupied):
            yield Slice(profile=profile.name, start=start, size=size)
