"""Splitting and pacing, without a network."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.cluster.informer import lines
from hami_plugin.cluster.requests import RETRY_AFTER_CAP, Gate, ListPace, retry_after
from hami_plugin.errors import ClusterError


async def stream(*chunks: bytes):
    for chunk in chunks:
        yield chunk


@given(st.lists(st.binary(min_size=1, max_size=9).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
async def test_lines_survive_any_cut(whole, size):
    text = b"".join(line + b"\n" for line in whole)
    chunks = [text[start : start + size] for start in range(0, len(text), size)]

    assert [line async for line in lines(stream(*chunks))] == whole


async def test_a_last_piece_without_an_end_is_yielded():
    assert [line async for line in lines(stream(b"a\nb"))] == [b"a", b"b"]


async def test_a_line_without_end_is_given_up():
    with pytest.raises(ClusterError, match="longer than 10 bytes"):
        [line async for line in lines(stream(*[b"x" * 4] * 9), longest=10)]


def test_a_pace_allows_a_burst_and_then_one_turn_in_a_while():
    now = 100.0
    pace = ListPace(every=10, burst=2, clock=lambda: now)

    waits = [pace.take() for _ in range(4)]
    now += 1000
    later = [pace.take() for _ in range(3)]

    assert waits == [0, 0, 10, 20]
    assert later == [0, 0, 10]


@given(st.lists(st.floats(0, 30), min_size=3, max_size=30))
def test_a_pace_is_kept_however_the_turns_are_asked_for(pauses):
    now, turns = 0.0, []
    pace = ListPace(every=10, burst=2, clock=lambda: now)

    for pause in pauses:
        now += pause
        now += pace.take()
        turns.append(now)

    assert all(third - first >= 10 - 1e-9 for first, third in itertools.pairwise(turns[::2]))


def test_a_gate_opens_when_the_longest_wish_has_passed():
    now = 0.0
    gate = Gate(clock=lambda: now)

    gate.shut(30)
    gate.shut(5)
    shut = gate.remaining
    now = 31

    assert (shut, gate.remaining) == (30, 0)


def test_a_gate_does_not_believe_in_days():
    gate = Gate(clock=lambda: 0.0)

    gate.shut(1e9)

    assert gate.remaining == RETRY_AFTER_CAP


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("30", 30), ("0.5", 0.5), ("", None), ("-1", None), ("inf", None), ("nan", None), ("Wed, 21 Oct 2026", None)],
)
def test_retry_after_is_read_in_seconds_only(header, seconds):
    assert retry_after({"Retry-After": header}) == seconds
