"""From one state to the next: what may happen, and nothing else."""

from itertools import product

import pytest

from hami_plugin.partitions.life import (
    ABSENT,
    TRANSITIONS,
    Entry,
    Owner,
    PartitionEvent,
    State,
    blocked_partitions,
    free_places,
    free_ratio,
    next_state,
    placeable,
)
from hami_plugin.sdk import NOWHERE, Placement, Profile
from tests.support.partitions import A30, A100, SIXTHS

S, E = State, PartitionEvent
LIFE = [
    (S.FREE, E.RESERVE, S.RESERVED),
    (S.RESERVED, E.INTEND, S.CREATING),
    (S.CREATING, E.MADE, S.READY),
    (S.CREATING, E.FAIL, S.FAILED),
    (S.READY, E.HAND_OUT, S.ASSIGNED),
    (S.READY, E.END, S.DRAINING),
    (S.ASSIGNED, E.HAND_OUT, S.ASSIGNED),
    (S.ASSIGNED, E.END, S.DRAINING),
    (S.DRAINING, E.DUE, S.DESTROYING),
    (S.DESTROYING, E.IN_USE, S.DRAINING),
    (S.DESTROYING, E.FAIL, S.DRAINING),
    (S.DESTROYING, E.GONE, S.DESTROYED),
    (S.READY, E.LOSE, S.LOST),
    (S.ASSIGNED, E.LOSE, S.LOST),
    (S.ASSIGNED, E.GONE, S.DESTROYED),
    (S.LOST, E.GONE, S.FREE),
    (S.FREE, E.FIND, S.FOREIGN),
    (S.FREE, E.LEAK, S.LEAKED),
    (S.LEAKED, E.END, S.DRAINING),
    (S.FAILED, E.GONE, S.FREE),
]


@pytest.mark.parametrize(("state", "event", "then"), LIFE)
def test_each_step_of_a_partitions_life(state, event, then):
    assert next_state(state, event) is then


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in product(State, PartitionEvent) if pair not in TRANSITIONS]
)
def test_nothing_else_can_happen(state, event):
    with pytest.raises(ValueError, match=state):
        next_state(state, event)


def test_a_foreign_partition_is_never_on_the_way_to_be_destroyed_but_where_all_are_ours():
    assert {event for (state, event) in TRANSITIONS if state is S.FOREIGN} == {E.GONE, E.ADOPT, E.LEAK}


def test_every_state_on_the_card_can_end():
    for state in set(State) - ABSENT:
        reached, more = set(), {state}
        while more:
            reached |= more
            more = {then for (before, _event), then in TRANSITIONS.items() if before in reached} - reached
        assert reached & {S.FREE, S.DESTROYED}, state


def entry(state, profile="1g.5gb", start=0, size=1, **changes):
    place = Placement(start=start, size=size)
    return Entry(number=1, state=state, card="GPU-0", profile=profile, placement=place, **changes)


def test_how_long_it_is_to_be_destroyed_counts_from_its_owners_end():
    owner = Owner(uid="a", container="main", device=0)
    ended = entry(S.ASSIGNED, owner=owner).to(E.END, now=10.0)
    again = ended.to(E.DUE, now=20.0).to(E.IN_USE, now=30.0)

    assert (ended.since, again.since, again.state) == (10.0, 10.0, S.DRAINING)


@pytest.mark.parametrize("state", State)
def test_what_no_scheduler_counts_blocks_its_places(state):
    one = entry(state, start=4)

    blocking = {S.DRAINING, S.DESTROYING, S.FAILED, S.LEAKED, S.FOREIGN}
    assert blocked_partitions([one]) == ({"GPU-0": (one.partition,)} if state in blocking else {})


def test_how_many_places_each_profile_has_left():
    low = entry(S.ASSIGNED, start=0)

    assert {one.name: count for one, count in placeable(A100, [low])} == {
        "1g.5gb": 6,
        "1g.5gb+me": 6,
        "1g.10gb": 3,
        "2g.10gb": 2,
        "3g.20gb": 1,
        "4g.20gb": 0,
        "7g.40gb": 0,
    }
    assert {one.name: count for one, count in placeable(A30, [])} == {
        "1g.6gb": 4,
        "1g.6gb+me": 4,
        "2g.12gb": 2,
        "4g.24gb": 1,
    }


def test_where_only_sums_count_what_is_left_is_what_can_be_made_of_the_rest():
    taken = [Entry(number=1, state=S.ASSIGNED, card="GPU-0", profile="2g.16gb", placement=NOWHERE)]

    left = list(placeable(SIXTHS, taken))
    assert {one.name: count for one, count in left} == {"1g.8gb": 4, "2g.16gb": 2, "3g.24gb": 1, "6g.48gb": 0}
    assert free_ratio(placeable(SIXTHS, [])) == 1.0
    assert 0.0 < free_ratio(left) < 1.0


def test_a_profile_that_a_card_may_have_once_has_no_place_beside_one():
    me = next(one for one in A100 if one.name == "1g.5gb+me")

    assert free_places(me, A100, [("1g.5gb+me", Placement(start=0, size=1))]) == []


def test_compute_slices_are_counted_too():
    """A card's memory may have a place where its compute slices are all taken."""
    places = tuple(Placement(start=start, size=1) for start in range(4))
    half, whole = (
        Profile(name=name, memory=1, compute=compute, placements=places, limit=9)
        for name, compute in (("half", 2), ("whole", 4))
    )
    table, taken = (half, whole), [("half", places[0])]

    assert free_places(half, table, taken) == list(places[1:])
    assert free_places(whole, table, taken) == []
    assert free_places(half, table, [*taken, ("half", places[1])]) == []
    assert free_places(half, table, [("unknown", Placement(start=0, size=3))]) == []
