"""Which ids should the kubelet take?"""

from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.allocation.identity import HeldShares, PodReader, choose_preferred
from hami_plugin.model.device import Link, Links, physical_id
from tests.support.builders import COUNT, NODE, QUESTION, container, grant, held_by, ids, pod, snapshot, uuid

ALL = ids(*[(card, share) for card in range(4) for share in range(4)])


def answer(available, must, size, *pods, held=(), links=None):
    shares = HeldShares(held)
    waiting = PodReader(QUESTION, NODE).pending(pods, shares)
    how = {"resource": COUNT, "snapshot": snapshot(4, links=links), "starting": [pod.uid for pod in pods]}
    return list(choose_preferred(available, must, size, waiting=waiting, held=shares, **how))


def test_the_kubelet_is_steered_to_the_devices_that_the_scheduler_chose():
    assert answer(ALL, [], 2, pod("a", pieces=[[grant(3), grant(1)]])) == ids((3, 0), (1, 0))


def test_a_share_that_is_taken_gives_way_to_the_next_one_by_number():
    available = [f"{uuid(3)}-10", f"{uuid(3)}-9"]

    assert answer(available, [], 1, pod("a", pieces=[[grant(3)]])) == [f"{uuid(3)}-9"]


def test_the_first_to_arrive_of_this_size_leads():
    pair = pod("pair", pieces=[[grant(0), grant(1)]])
    first, second = pod("first", pieces=[[grant(2)]]), pod("second", pieces=[[grant(3)]])

    assert answer(ALL, [], 1, pair, first, second) == ids((2, 0))


def test_a_decision_whose_devices_are_not_available_gives_way_to_the_next():
    first, second = pod("first", pieces=[[grant(2)]]), pod("second", pieces=[[grant(3)]])

    assert answer(ids((3, 0)), [], 1, first, second) == ids((3, 0))


def test_an_init_containers_id_stays_and_the_rest_follows_its_own_pods_decision():
    a = pod("a", [container("init", 1, init=True), container("one", 2)], [[grant(0)], [grant(1), grant(2)]])
    other = pod("b", pieces=[[grant(0), grant(3)]])
    held = [held_by(a, "init", ids((0, 2)), init=True)]

    assert answer(ALL, ids((0, 2)), 2, other, a, held=held) == ids((0, 2), (1, 0))


def test_an_init_containers_id_of_a_granted_device_counts_for_it():
    a = pod("a", [container("init", 1, init=True), container("one", 2)], [[grant(0)], [grant(1), grant(0)]])
    held = [held_by(a, "init", ids((0, 2)), init=True)]

    assert answer(ALL, ids((0, 2)), 2, a, held=held) == ids((0, 2), (1, 0))


def test_a_pod_whose_answer_the_kubelet_has_lost_gets_its_ids_again():
    first, second = pod("first", pieces=[[grant(2)]]), pod("second", pieces=[[grant(3)]])
    held = [held_by(second, "main", ids((3, 1))), held_by(first, "main", ids((2, 1)))]

    assert answer(ALL, [], 1, first, second, held=held) == ids((2, 1))
    assert answer([one for one in ALL if one != ids((2, 1))[0]], [], 1, first, second, held=held) == ids((3, 1))


def test_a_pod_that_waits_comes_before_one_whose_answer_the_kubelet_has_lost():
    lost, waits = pod("lost", pieces=[[grant(2)]]), pod("waits", pieces=[[grant(3)]])

    assert answer(ALL, [], 1, lost, waits, held=[held_by(lost, "main", ids((2, 1)))]) == ids((3, 0))


def test_without_a_decision_distinct_devices_that_are_linked_best():
    links = Links(pairs={(uuid(1), uuid(3)): Link(score=100, label="NV")})

    assert answer(ALL, [], 2, links=links) == ids((1, 0), (3, 0))


def test_without_a_decision_a_device_that_somebody_shares_comes_last():
    share = held_by(pod("b"), "main", ids((0, 0)), [grant(0)])

    assert answer(ALL[1:], [], 1, held=[share]) == ids((1, 0))
    assert len(answer(ALL[1:], [], 4, held=[share])) == 4


def test_with_too_few_devices_a_second_share_of_one_is_better_than_none():
    assert answer(ids((0, 0), (0, 1), (1, 0)), [], 3) == ids((0, 0), (1, 0), (0, 1))


def test_no_answer_when_there_cannot_be_one():
    assert answer(ids((0, 0)), [], 2) == []
    assert answer(ALL, ids((0, 0), (1, 0)), 1) == []
    assert answer(ALL, [], 0) == []


@given(st.data())
def test_every_answer_is_one_that_the_kubelet_accepts(data):
    strange = [*ALL, "odd", "odd-1", f"{uuid(9)}::3"]
    available = data.draw(st.lists(st.sampled_from(strange), unique=True, min_size=1))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
    size = data.draw(st.integers(1, len(available)))
    pieces = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
    a = pod("a", pieces=[[grant(card) for card in pieces]])

    chosen = answer(available, must, size, a)

    if chosen:
        assert len(chosen) == len(set(chosen)) == size
        assert set(must) <= set(chosen) <= set(available)
    else:
        assert len(must) > size
    if chosen and not must and size <= len({physical_id(r) for r in available} & {uuid(n) for n in range(4)}):
        assert len({physical_id(r) for r in chosen}) == size
