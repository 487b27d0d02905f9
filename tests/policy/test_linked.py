from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import hami_plugin.simulation
from hami_plugin.model.links import NO_LINKS, Link, Links
from hami_plugin.model.machine import machine
from hami_plugin.policy.linked import best_linked, least_linked

PROFILES = sorted((Path(hami_plugin.simulation.__file__).parent / "profiles").glob("*.yaml"))
LEVELS = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}


def links_of(devices: Sequence[str], scores: Sequence[int]) -> Links:
    pairs = combinations(sorted(devices), 2)
    return Links(pairs={pair: Link(score=score, label="") for pair, score in zip(pairs, scores, strict=True)})


def profile(path: Path) -> tuple[list[str], Links]:
    """A machine's devices, and links that score as wire-protocol's table has it: level plus 100 for each lane."""
    found = machine(yaml.safe_load(path.read_text()))
    names = [f"d{device.index:02}" for device in found.devices]
    scores = [
        LEVELS[found.levels[i][j]] + 100 * min(18, found.lanes[i][j]) for i, j in combinations(range(len(names)), 2)
    ]
    return names, links_of(names, scores)


def best_of_all(devices: Sequence[str], count: int, links: Links, required: Sequence[str] = ()) -> tuple[str, ...]:
    """The definition, by trying everything. ``max`` keeps the first of equals, which stands first in ``devices``."""
    choices = [choice for choice in combinations(devices, count) if set(required) <= set(choice)]
    return max(choices, key=lambda choice: (links.total(choice), links.total([d for d in devices if d not in choice])))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[str], int, Links, list[str]]:
    devices = draw(st.permutations([f"d{n}" for n in range(draw(st.integers(1, 8)))]))
    count = draw(st.integers(0, len(devices)))
    pairs = len(devices) * (len(devices) - 1) // 2
    # Few distinct scores, so that ties and exchangeable devices are common.
    scores = draw(st.lists(st.sampled_from([0, 10, 20, 110, 420]), min_size=pairs, max_size=pairs))
    required = draw(st.lists(st.sampled_from(devices), max_size=count, unique=True))
    return devices, count, links_of(devices, scores), required


@settings(deadline=None, max_examples=300)
@given(problems())
def test_nothing_is_better_than_the_answer_and_of_equals_it_is_the_first(
    problem: tuple[list[str], int, Links, list[str]],
):
    devices, count, links, required = problem

    assert best_linked(devices, count, links, required=required) == best_of_all(devices, count, links, required)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_machine_is_served_with_the_best_choice(path: Path):
    devices, links = profile(path)
    counts = range(1, len(devices) + 1) if len(devices) <= 10 else (2, 4)

    for count in counts:
        assert best_linked(devices, count, links) == best_of_all(devices, count, links)


def test_half_of_sixteen_devices_is_one_half_of_the_machine():
    devices, links = profile(next(path for path in PROFILES if path.stem == "dgx-2"))

    assert best_linked(devices, 8, links) == tuple(devices[:8])
    assert best_linked(devices, 8, links, required=["d12"]) == tuple(devices[8:])


def test_four_of_a_cube_mesh_are_one_of_its_sides():
    devices, links = profile(next(path for path in PROFILES if path.stem == "dgx-1v"))

    assert best_linked(devices, 4, links) == ("d00", "d01", "d02", "d03")
    assert best_linked(devices[1:], 4, links) == ("d04", "d05", "d06", "d07")


def test_a_pair_is_not_torn_when_another_choice_is_as_good():
    links = Links(
        pairs={
            ("a", "b"): Link(score=20, label=""),
            ("c", "d"): Link(score=20, label=""),
            ("b", "e"): Link(score=20, label=""),
        }
    )

    assert best_linked("abcde", 2, links) == ("c", "d")


def test_the_answer_stands_in_the_order_of_the_devices():
    assert best_linked(["c", "a", "b"], 2, NO_LINKS, required=["b"]) == ("c", "b")


def test_many_devices_are_answered_well_and_soon():
    devices = [f"d{n:02}" for n in range(64)]
    scores = [1810 if a // 8 == b // 8 else 10 for a, b in combinations(range(64), 2)]
    before = time.monotonic()

    answer = best_linked(devices, 8, links_of(devices, scores), required=["d42"])

    assert answer == tuple(devices[40:48])
    assert time.monotonic() - before < 5


def test_beyond_the_exact_search_a_clique_is_still_found():
    devices = [f"d{n:02}" for n in range(24)]
    clique = {3, 5, 7, 11, 13, 17, 19, 23, 2, 0, 21, 14}
    scores = [900 + a if {a, b} <= clique else 10 + (7 * a + 3 * b) % 50 for a, b in combinations(range(24), 2)]

    assert best_linked(devices, 12, links_of(devices, scores)) == tuple(f"d{n:02}" for n in sorted(clique))


@pytest.mark.parametrize(("count", "required"), [(3, []), (-1, []), (1, ["a", "b"]), (1, ["z"]), (2, ["z"])], ids=str)
def test_an_impossible_choice_is_an_error(count: int, required: list[str]):
    with pytest.raises(ValueError, match=f"cannot choose {count} of 2 devices"):
        best_linked(["a", "b"], count, NO_LINKS, required=required)


def test_a_single_device_is_taken_where_the_fewest_links_are_torn():
    links = Links(pairs={("a", "b"): Link(score=420, label=""), ("b", "c"): Link(score=10, label="")})

    assert least_linked(["a", "b", "c"], links) == "c"
    assert least_linked(["b", "a"], links) == "b"
    with pytest.raises(ValueError, match="no devices"):
        least_linked([], links)
