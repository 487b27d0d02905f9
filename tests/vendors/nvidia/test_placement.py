"""Where a MIG instance goes: where it costs larger ones least, and never nowhere while there is a place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fragmentation import first_place, profiles_of, total
from hami_plugin.protocol.nodes import MigProfile
from hami_plugin.sdk import Range
from tests.hami.vendors.nvidia import cost
from tests.support.scale import sized
from vendors.nvidia.rules import best_place
from vendors.nvidia.simulation.records import load_tables

TABLES = tuple(load_tables())
SHAPES = {tuple((one.placements, one.slices) for one in profiles_of(table)): table for table in reversed(TABLES)}
"""A card of each kind of table: most cards have the same places."""
EIGHT = profiles_of("a100-40gb")


def named(name: str) -> MigProfile:
    return next(one for one in EIGHT if one.name == name)


def overlap(one: Range, other: Range) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


@settings(deadline=None)
@given(st.sampled_from(TABLES), st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=5), st.data())
def test_what_fits_is_never_refused_and_costs_the_least(table: str, occupied: list[Range], data: st.DataObject) -> None:
    profiles = profiles_of(table)
    profile = data.draw(st.sampled_from(profiles))

    place = best_place(profile, profiles, occupied)

    free = [one for one in profile.placements if not any(overlap(one, taken) for taken in occupied)]
    assert (place is None) is (not free)
    if place:
        assert place in free
        costs = {one: cost(profile, profiles, occupied, one) for one in free}
        assert costs[place] == min(costs.values())


def test_small_instances_fill_the_half_that_has_a_slice_less_and_then_the_other() -> None:
    occupied: list[Range] = []
    while place := best_place(named("1g.5gb"), EIGHT, occupied):
        occupied.append(place)

    assert [start for start, _ in occupied] == [6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("profile", "occupied", "place"),
    [
        ("2g.10gb", [], (4, 2)),
        ("2g.10gb", [(6, 1)], (4, 2)),
        ("3g.20gb", [], (4, 4)),
        ("3g.20gb", [(4, 1)], (0, 4)),
        ("1g.5gb", [(0, 1)], (1, 1)),
        ("1g.5gb", [(0, 1), (4, 4)], (1, 1)),
        ("1g.10gb", [], (6, 2)),
        ("7g.40gb", [(3, 1)], None),
    ],
)
def test_an_instance_goes_where_others_have_spoilt_it_for_larger_ones(
    profile: str, occupied: list[Range], place: Range | None
) -> None:
    assert best_place(named(profile), EIGHT, occupied) == place


@pytest.mark.parametrize("table", SHAPES.values())
def test_fewer_requests_than_by_hamis_choice_are_refused_for_fragments(table: str) -> None:
    count = sized(200, 1000)
    ours, his = total(table, count, best_place), total(table, count, first_place)

    assert ours.lost < his.lost
    assert ours.work >= his.work
