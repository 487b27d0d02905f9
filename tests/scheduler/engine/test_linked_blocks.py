from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.scheduler.engine.topology import (
    Block,
    Even,
    Fields,
    Uneven,
    best_of_blocks,
    blocks,
    by_count,
    leader,
    sums,
    worth,
)
from tests.support.bounded_search import improved
from tests.support.scale import examples


def matrix(size: int, scores: list[int]) -> list[list[int]]:
    rows, left = [[0] * size for _ in range(size)], iter(scores)
    for i in range(size):
        for j in range(i):
            rows[i][j] = rows[j][i] = next(left)
    return rows


@st.composite
def matrices(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(2, 10))
    pairs = size * (size - 1) // 2
    return matrix(size, draw(st.lists(st.sampled_from([0, 1, 5]), min_size=pairs, max_size=pairs)))


def positions(block: Block) -> list[int]:
    return [block] if isinstance(block, int) else [p for part in block.parts for p in positions(part)]


def check(block: Block, links: list[list[int]]) -> None:
    if isinstance(block, int):
        return
    members = positions(block)
    for part in block.parts:
        inside = positions(part)
        for p in set(members) - set(inside):
            assert len({links[p][q] for q in inside}) == 1
            assert not isinstance(block, Even) or links[p][inside[0]] == block.link
        check(part, links)


@settings(deadline=None, max_examples=examples(200))
@given(matrices())
def test_every_device_outside_a_part_sees_all_of_it_alike(links: list[list[int]]):
    tree = blocks(links)

    check(tree, links)
    assert sorted(positions(tree)) == list(range(len(links)))


def test_devices_behind_one_switch_are_one_even_block():
    assert blocks(matrix(3, [7, 7, 7])) == Even(link=7, parts=(0, 1, 2))
    assert blocks([[0]]) == 0


def test_boards_are_blocks_of_a_machine():
    board = [[9 if i // 2 == j // 2 else 1 for j in range(4)] for i in range(4)]

    assert blocks(board) == Even(link=1, parts=(Even(link=9, parts=(0, 1)), Even(link=9, parts=(2, 3))))


def test_a_ring_of_five_is_uneven():
    ring = [[int((i - j) % 5 in (1, 4)) for j in range(5)] for i in range(5)]

    tree = blocks(ring)

    assert isinstance(tree, Uneven)
    assert leader(tree) == 0
    assert len(tree.parts) == 5


@settings(deadline=None, max_examples=examples(200))
@given(matrices(), st.data())
def test_the_bounded_search_proves_what_the_blocks_yield(links: list[list[int]], data: st.DataObject):
    needed = data.draw(st.lists(st.sampled_from(range(len(links))), max_size=len(links) - 2, unique=True))
    free = [p for p in range(len(links)) if p not in needed]
    count = data.draw(st.integers(1, len(free) - 1))
    value = worth(links, free, needed)
    tree = blocks(value.links)

    best, proven = improved(tree, value, count, looks=10**6)

    assert proven
    assert best == best_of_blocks(tree, value, count)


@pytest.mark.parametrize("size", [13, 14, 15, 16, 18])
def test_trying_all_halves_finds_what_the_bounded_search_proves(size: int):
    chance = random.Random(size)
    # Wide scores, and so few that a great many choices are equal.
    for scores in (range(1000), range(10**12), [0, 1], [10, 20, 110]):
        value = worth(matrix(size, chance.choices(scores, k=size * (size - 1) // 2)), range(size), ())
        tree = blocks(value.links)
        for count in (size // 4, size // 2):
            best, proven = improved(tree, value, count, looks=10**7)
            assert proven
            assert best_of_blocks(tree, value, count) == best


@given(st.sampled_from([20, 31, 32, 63, 64, 90]), st.data())
def test_fields_keep_their_numbers_apart(bits: int, data: st.DataObject):
    numbers = st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=20)
    one = data.draw(numbers)
    fields = Fields(len(one), bits)

    assert list(fields.unpacked(fields.packed(one))) == one
    assert fields.highest(fields.packed(one)) == max(one)
    assert fields.unpacked(fields.ones) == fields.unpacked(fields.packed([1] * len(one)))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_combinations_take_every_number_of_every_part(most: list[int], data: st.DataObject):
    links = data.draw(st.lists(st.integers(0, 9), min_size=len(most), max_size=len(most)))
    taken = [digits[::-1] for digits in product(*(range(each + 1) for each in reversed(most)))]

    assert sums(links, most) == [sum(n * link for n, link in zip(digits, links, strict=True)) for digits in taken]
    assert by_count(most) == [
        [c for c, digits in enumerate(taken) if sum(digits) == count] for count in range(sum(most) + 1)
    ]
