from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import hami_plugin.simulation
from hami_plugin.allocation.identity import HeldShares, PodReader, choose_preferred
from hami_plugin.model.device import NO_LINKS, Link, Links, Snapshot
from hami_plugin.model.machine import machine
from hami_plugin.model.views import PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Candidate, Charge, Context, Demand, idle_state
from hami_plugin.scheduler.engine.policy import Misfit, linked_choice
from hami_plugin.scheduler.engine.topology import best_linked, choose
from tests.support.builders import COUNT, NODE, QUESTION, device
from tests.support.scale import examples

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


@st.composite
def built_of_blocks(draw: st.DrawFn) -> tuple[list[str], int, Links, list[str]]:
    """Up to 12 devices: a few, of which some were replaced by several that the others see alike, and that again."""
    scores = st.sampled_from(draw(st.sampled_from([[0, 10], [10, 20, 110], [-5, 0, 7], list(range(1000))])))

    def matrix(size: int) -> list[list[int]]:
        rows = [[0] * size for _ in range(size)]
        for i, j in combinations(range(size), 2):
            rows[i][j] = rows[j][i] = draw(scores)
        return rows

    links = matrix(draw(st.integers(1, 5)))
    for replaced, size in draw(st.lists(st.tuples(st.integers(0, 11), st.integers(2, 5)), max_size=3)):
        outer, inner, at = links, matrix(size), replaced % len(links)
        members = [(p, None) for p in range(len(outer)) if p != at] + [(at, i) for i in range(size)]
        if len(members) <= 12:
            links = [[inner[i][j] if p == q == at else outer[p][q] for q, j in members] for p, i in members]
    devices = draw(st.permutations([f"d{n:02}" for n in range(len(links))]))
    count = draw(st.integers(0, len(devices)))
    required = draw(st.lists(st.sampled_from(devices), max_size=count, unique=True))
    ordered = sorted(devices)
    return devices, count, links_of(ordered, [links[i][j] for i, j in combinations(range(len(ordered)), 2)]), required


@settings(deadline=None, max_examples=examples(300))
@given(st.one_of(problems(), built_of_blocks()))
def test_nothing_is_better_than_the_answer_and_of_equals_it_is_the_first(
    problem: tuple[list[str], int, Links, list[str]],
):
    devices, count, links, required = problem

    choice = choose(devices, count, links, required=required)

    assert choice.devices == best_of_all(devices, count, links, required)
    assert choice.score == links.total(choice.devices)
    assert choice.proven


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_machine_is_served_with_the_best_choice(path: Path):
    devices, links = profile(path)
    counts = range(1, len(devices) + 1) if len(devices) <= 12 else (2, 4)

    for count in counts:
        assert best_linked(devices, count, links) == best_of_all(devices, count, links)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_whatever_is_in_use_the_best_of_what_is_free_is_proven(path: Path):
    devices, links = profile(path)
    chance = random.Random(path.stem)

    for _ in range(12):
        free = sorted(chance.sample(devices, chance.randint(1, len(devices))))
        count = chance.randint(1, len(free))
        choice = choose(free, count, links)
        assert choice.proven
        if len(free) <= 12:
            assert choice.devices == best_of_all(free, count, links)


def test_half_of_a_grid_is_the_best_of_all_its_halves():
    devices, links = profile(next(path for path in PROFILES if path.stem == "aws-trn1-32xlarge"))
    score = {frozenset(pair): link.score for pair, link in links.pairs.items()}
    degree = {d: sum(links.score(d, e) for e in devices if e != d) for d in devices}

    def rank(choice: tuple[str, ...]) -> tuple[int, int]:
        inside = sum(score[frozenset(pair)] for pair in combinations(choice, 2))
        return inside, inside - sum(degree[d] for d in choice)  # what the rest has, but for a constant

    assert best_linked(devices[1:], 8, links) == max(combinations(devices[1:], 8), key=rank)


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


def scored(size: int, score: Callable[[int, int], int]) -> tuple[list[str], Links]:
    devices = [f"d{n:02}" for n in range(size)]
    return devices, links_of(devices, [score(a, b) for a, b in combinations(range(size), 2)])


def test_of_64_partitions_those_of_the_same_cards_are_taken():
    devices, links = scored(64, lambda a, b: 460 if a // 8 == b // 8 else 120 if a // 32 == b // 32 else 110)

    choice = choose(devices, 16, links, required=["d42"])

    assert choice.devices == (*devices[32:48],)
    assert choice.score == 2 * 28 * 460 + 64 * 120
    assert choice.proven


def test_of_a_rack_whole_trays_are_taken_and_none_that_is_torn_without_need():
    devices, links = scored(72, lambda a, b: 1820 if a // 4 == b // 4 else 1810)
    free = [d for d in devices if d not in ("d01", "d06")]

    choice = choose(free, 8, links)

    assert choice.devices == (*devices[8:16],)
    assert choose(free, 3, links).devices == ("d00", "d02", "d03")
    assert choice.proven


def test_beyond_the_exact_search_a_clique_is_still_found():
    clique = {3, 5, 7, 11, 13, 17, 19, 23, 2, 0, 21, 14}
    devices, links = scored(24, lambda a, b: 900 + a if {a, b} <= clique else 10 + (7 * a + 3 * b) % 50)

    assert best_linked(devices, 12, links) == tuple(f"d{n:02}" for n in sorted(clique))


@pytest.mark.parametrize(("size", "count"), [(22, 5), (22, 11), (32, 16), (48, 12), (72, 3)])
def test_beyond_the_exact_search_the_answer_is_never_worse_than_growing_from_every_start(size: int, count: int):
    chance = random.Random(size)
    devices, links = scored(size, lambda *_: chance.randrange(1000))

    choice = choose(devices, count, links)

    assert choice.score >= max(links.total(grown_plainly(devices, count, links, start)) for start in devices)
    assert choice.score == links.total(choice.devices)
    assert len(choice.devices) == count
    assert choice == choose(devices, count, links)


def grown_plainly(devices: list[str], count: int, links: Links, start: str) -> list[str]:
    """Add what is linked best to what there is; then exchange two at a time, the best ones first, while it helps."""
    chosen = [start]

    def gain(d: str, without: str = "") -> int:
        return sum(links.score(d, e) for e in chosen if e not in (d, without))

    while len(chosen) < count:
        chosen.append(max((d for d in devices if d not in chosen), key=gain))
    while True:
        own = {d: gain(d) for d in devices}
        others = [d for d in devices if d not in chosen]
        better, old, new = max((own[b] - links.score(a, b) - own[a], a, b) for a in chosen for b in others)
        if better <= 0:
            return chosen
        chosen[chosen.index(old)] = new


def test_an_answer_that_was_not_proven_says_so():
    chance = random.Random(1)
    devices, links = scored(40, lambda *_: chance.randrange(1000))

    assert not choose(devices, 20, links).proven
    assert choose(devices, 40, links).proven


def test_scores_of_any_size_are_compared_exactly():
    chance = random.Random(2)
    devices, links = scored(10, lambda *_: chance.randrange(10**15))

    assert best_linked(devices, 5, links) == best_of_all(devices, 5, links)
    assert choose(devices, 5, links).proven


def test_a_choice_from_64_partitions_takes_less_than_a_mebibyte():
    devices, links = scored(64, lambda a, b: 460 if a // 8 == b // 8 else 110)
    tracemalloc.start()

    choose(devices, 16, links)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(("count", "required"), [(3, []), (-1, []), (1, ["a", "b"]), (1, ["z"]), (2, ["z"])], ids=str)
def test_an_impossible_choice_is_an_error(count: int, required: list[str]):
    with pytest.raises(ValueError, match=f"cannot choose {count} of 2 devices"):
        best_linked(["a", "b"], count, NO_LINKS, required=required)


def test_a_single_device_is_taken_where_the_fewest_links_are_torn():
    links = Links(pairs={("a", "b"): Link(score=420, label=""), ("b", "c"): Link(score=10, label="")})

    assert best_linked(["a", "b", "c"], 1, links) == ("c",)
    assert best_linked(["b", "a"], 1, links) == ("b",)


@settings(deadline=None)
@given(st.one_of(problems(), built_of_blocks()), st.randoms())
def test_another_order_of_the_devices_decides_only_between_equals(
    problem: tuple[list[str], int, Links, list[str]], chance: random.Random
):
    devices, count, links, required = problem
    shuffled = chance.sample(devices, len(devices))

    one, other = (choose(order, count, links, required=required).devices for order in (devices, shuffled))

    assert links.total(one) == links.total(other)
    rests = [[d for d in devices if d not in chosen] for chosen in (one, other)]
    assert links.total(rests[0]) == links.total(rests[1])


def chosen_of(walked: Sequence[Candidate], count: int, links: Links) -> list[str]:
    context = Context(
        demand=Demand(device_type="card", count=count), pod=PodView(uid="", namespace="", name=""), links=links
    )
    chosen = linked_choice(walked, context)
    assert not isinstance(chosen, Misfit)
    return [one.uuid for one in chosen]


def shares(devices: Sequence[str]) -> list[Candidate]:
    """A part of each card, in order of index."""
    infos = [
        DeviceInfo(id=uuid, index=number, count=10, devmem=100, devcore=100) for number, uuid in enumerate(devices)
    ]
    return [Candidate(state=idle_state(info), charge=Charge(memory=10, cores=10)) for info in infos]


@settings(deadline=None)
@given(built_of_blocks(), st.randoms())
def test_topology_aware_takes_of_equally_linked_cards_the_first_in_walking_order(
    problem: tuple[list[str], int, Links, list[str]], chance: random.Random
):
    devices, count, links, _ = problem
    walked = chance.sample(shares(sorted(devices)), len(devices))
    order = [one.uuid for one in walked]

    chosen = chosen_of(walked, count, links)

    if count == 1:
        least = min(sum(links.score(uuid, peer) for peer in order) for uuid in order)
        assert chosen == [next(uuid for uuid in order if sum(links.score(uuid, peer) for peer in order) == least)]
    else:  # ``max`` keeps the first of equals
        assert chosen == list(max(combinations(order, count), key=links.total))


@settings(deadline=None)
@given(built_of_blocks(), st.randoms(), st.sampled_from([{"cores": 100}, {"memory": 100}, {}]))
def test_of_cards_that_are_taken_whole_those_come_first_that_leave_the_best_linked_rest(
    problem: tuple[list[str], int, Links, list[str]], chance: random.Random, all_of: dict[str, int]
):
    devices, count, links, _ = problem
    slots = 10 if all_of else 1
    whole = [
        Candidate(state=replace(one.state, info=replace(one.state.info, count=slots)), charge=Charge(**all_of))
        for one in shares(sorted(devices))
    ]
    walked = chance.sample(whole, len(whole))

    assert chosen_of(walked, count, links) == list(best_of_all([one.uuid for one in walked], count, links))


@pytest.mark.parametrize(("size", "count"), [(8, 4), (16, 8)])
def test_where_all_cards_are_linked_alike_the_first_in_walking_order_are_taken(size: int, count: int):
    devices, links = scored(size, lambda *_: 1850)
    walked = random.Random(size).sample(shares(devices), size)

    assert chosen_of(walked, count, links) == [one.uuid for one in walked[:count]]


@settings(deadline=None)
@given(built_of_blocks(), st.randoms())
def test_the_kubelet_is_told_the_same_choice_in_whatever_order_it_names_the_devices(
    problem: tuple[list[str], int, Links, list[str]], chance: random.Random
):
    devices, count, links, required = problem
    shown = Snapshot(
        devices=tuple(replace(device(n), uuid=uuid) for n, uuid in enumerate(sorted(devices))), links=links
    )
    asked = chance.sample(devices, len(devices))

    told = choose_preferred(
        asked,
        required,
        count,
        waiting=PodReader(QUESTION, NODE).pending([], HeldShares()),
        held=HeldShares(),
        resource=COUNT,
        snapshot=shown,
    )

    assert set(told) == (set(best_of_all(sorted(devices), count, links, required)) if count else set())
