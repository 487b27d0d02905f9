from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.policy.blocks import Block, Even, Uneven, blocks, leader
from hami_plugin.policy.bounded import improved
from hami_plugin.policy.growing import grown
from hami_plugin.policy.structure import best_of_blocks
from hami_plugin.policy.worth import worth


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


@settings(deadline=None, max_examples=200)
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


@settings(deadline=None, max_examples=200)
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


def test_without_a_budget_the_search_keeps_what_was_grown_and_claims_nothing():
    links = matrix(12, [(37 * n * n + 11 * n) % 101 for n in range(66)])
    value = worth(links, range(12), ())

    best, proven = improved(blocks(value.links), value, 6, looks=0)

    assert best == grown(value, 6)[0]
    assert not proven
