"""Which share of a decision is whose, and is it more than was asked for?"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.allocation.capacity import beyond_request
from hami_plugin.allocation.identity import record
from hami_plugin.errors import WireError
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_ALLOCATING, PHASE_SUCCESS
from hami_plugin.protocol.pods import DecidedShare, decided_shares
from tests.support.builders import (
    ALLOCATED,
    CARD_MIB,
    QUESTION,
    TO_ALLOCATE,
    container,
    grant,
    held_by,
    pod,
    uuid,
)
from tests.support.scale import examples


def test_more_shares_than_containers_are_an_error_with_both_numbers():
    a = pod("a", [container(count=1)], [[grant(0)], [grant(1)]])

    with pytest.raises(WireError, match=r"shares for 2 containers, 1 ask for toy.io/card"):
        decided_shares(a, QUESTION)


@pytest.mark.scenario("X1")
@pytest.mark.parametrize("pieces", [[[grant(0)], [], [grant(1)]], [[], [grant(0)], [grant(1)]]], ids=["end", "middle"])
def test_a_share_at_the_place_of_a_container_that_asks_for_nothing_is_an_error(pieces):
    """Every container has an entry, so that each must stand at its own: a share is never moved to the next one."""
    asked = [container("one", count=1), container("two", count=1), container("idle")]

    with pytest.raises(WireError, match=r"devices for container idle, which asks for no toy.io/card"):
        decided_shares(pod("a", asked, pieces), QUESTION)


def test_where_empty_entries_are_left_out_the_next_share_is_the_next_asking_containers():
    asked = [container("idle"), container("one", count=1), container("two", count=1)]

    found = decided_shares(pod("a", asked, [[grant(0)], [grant(1)]]), QUESTION)

    assert [(claim.container.name, claim.grants) for claim in found] == [("one", (grant(0),)), ("two", (grant(1),))]


def test_shares_that_the_decision_never_had_are_an_error():
    a = pod("a", pieces=[[grant(0)]])
    forged = replace(a, annotations={**a.annotations, TO_ALLOCATE: f"{uuid(1)},TOY,1000,10:;"})

    with pytest.raises(WireError, match="not what is left"):
        decided_shares(forged, QUESTION)


def test_a_pod_without_a_request_and_without_shares_has_no_claims():
    assert decided_shares(pod("a", [container()], [[]]), QUESTION) == ()


def test_a_decision_longer_than_any_real_one_is_not_read():
    a = pod("a", pieces=[[grant(0)]])
    forged = replace(a, annotations={**a.annotations, ALLOCATED: ";" * 70_000})

    with pytest.raises(WireError, match="70000 characters"):
        decided_shares(forged, QUESTION)


def claim_of(asks, **granted) -> DecidedShare:
    a = pod("a", [asks], [[grant(0, **granted)]])
    return DecidedShare(pod=a, container=asks, grants=(grant(0, **granted),), piece=0)


@pytest.mark.parametrize(
    ("asked", "granted", "too_much"),
    [
        ({"memory": 1000}, {"memory": 1000}, ""),
        ({"memory": 1000}, {"memory": 1001}, "1001 MiB"),
        ({"memory": 1000}, {"memory": 0}, "all memory"),
        ({"percent": 50}, {"memory": CARD_MIB // 2}, ""),
        ({"percent": 50}, {"memory": CARD_MIB // 2 + 1}, "MiB"),
        ({"percent": 50}, {"memory": 0}, "all memory"),
        ({}, {"memory": CARD_MIB}, ""),
        ({}, {"memory": CARD_MIB + 1}, "MiB"),
        ({}, {"memory": 0}, ""),
        ({"cores": 30}, {"cores": 30}, ""),
        ({"cores": 30}, {"cores": 31}, "31 % cores"),
        ({"cores": 30}, {"cores": 0}, "all cores"),
        ({}, {"cores": 100}, ""),
        ({}, {"cores": 101}, "101 % cores"),
        ({}, {"cores": 0}, ""),
    ],
    ids=str,
)
def test_a_grant_is_bound_by_what_the_container_asks_for(asked, granted, too_much):
    found = beyond_request(claim_of(container(count=1, **asked), **granted), QUESTION, {uuid(0): CARD_MIB})

    assert (too_much in found) if too_much else (found == "")


def test_one_unit_of_memory_may_mean_more_than_one_mib():
    question = replace(QUESTION, memory_factor=1024)
    claim = claim_of(container(count=1, memory=2), memory=2048)

    assert beyond_request(claim, question, {uuid(0): CARD_MIB}) == ""
    assert beyond_request(claim, QUESTION, {uuid(0): CARD_MIB})


def test_a_pod_with_nothing_handed_out_stays_as_it_is():
    a = pod("a", pieces=[[grant(0)]])

    done = record(a, [QUESTION], {})

    assert (dict(done.changes), done.finished) == ({}, False)


def test_what_was_handed_out_is_crossed_out_and_the_phase_follows_the_last_share():
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
    one, two = held_by(a, "one"), held_by(a, "two")

    first = record(a, [QUESTION], {one.key: one})
    last = record(a, [QUESTION], {one.key: one, two.key: two})

    assert dict(first.changes) == {TO_ALLOCATE: f";{uuid(1)},TOY,1000,10:;"}
    assert not first.finished
    assert dict(last.changes) == {TO_ALLOCATE: ";;", BIND_PHASE: PHASE_SUCCESS}
    assert last.finished


def test_a_second_resource_that_still_waits_keeps_the_phase():
    other = replace(QUESTION, resource="toy.io/other", to_allocate="other/to", allocated="other/all")
    asks = container("one", 1)
    asks = replace(asks, limits={**asks.limits, "toy.io/other": "1"})
    text = f"{uuid(5)},TOY,1,1:;"
    a = pod("a", [asks], [[grant(0)]], annotations={"other/to": text, "other/all": text})
    one = held_by(a, "one")

    done = record(a, [QUESTION, other], {one.key: one})

    assert dict(done.changes) == {TO_ALLOCATE: ";"}
    assert not done.finished


def test_an_unreadable_decision_is_never_called_finished():
    a = pod("a", [container("one", 1)], annotations={TO_ALLOCATE: "x,y;", ALLOCATED: "x,y;"})

    assert not record(a, [QUESTION], {}).finished


@settings(max_examples=examples(60))
@given(
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=5).filter(any),
    cut=st.lists(st.integers(0, 5), max_size=5),
)
def test_records_converge_whatever_is_written_between_and_never_touch_the_decision(shape, cut):
    """Shares are handed out one by one; after some of them, the changes so far are written."""
    containers = [container(f"c{n}", count) for n, count in enumerate(shape)]
    a = pod("a", containers, [[grant(card, 100 + card) for card in range(count)] for count in shape])
    decided, held = a.annotations[ALLOCATED], {}

    for number, asks in enumerate(c for c in containers if c.limits):
        share = held_by(a, asks.name)
        held[share.key] = share
        if number in cut:
            a = replace(a, annotations={**a.annotations, **record(a, [QUESTION], held).changes})
            assert a.annotations[BIND_PHASE] == (
                PHASE_SUCCESS if "," not in a.annotations[TO_ALLOCATE] else PHASE_ALLOCATING
            )
    a = replace(a, annotations={**a.annotations, **record(a, [QUESTION], held).changes})

    assert "," not in a.annotations[TO_ALLOCATE]
    assert a.annotations[TO_ALLOCATE].count(";") == len(shape)
    assert a.annotations[ALLOCATED] == decided
    assert a.annotations[BIND_PHASE] == PHASE_SUCCESS
    assert not record(a, [QUESTION], held).changes
