"""Decisions that are looked at in every Allocate are read once, and never out of date."""

from dataclasses import replace

from hami_plugin.allocation.identity import HeldShares, PodReader
from tests.support.builders import NODE, QUESTION, TO_ALLOCATE, container, grant, held_by, ids, pod


def claims(reader, *pods, held=None):
    return list(reader.pending(pods, HeldShares() if held is None else held).next)


def test_a_version_of_a_pod_is_read_once():
    a, reader = pod("a", [container(count=1)], [[grant(0)]]), PodReader(QUESTION, NODE)

    (first,), (second,) = claims(reader, a), claims(reader, a)

    assert first is second


def test_a_new_version_of_the_pod_is_read_anew():
    a, reader = pod("a", [container(count=1)], [[grant(0)]]), PodReader(QUESTION, NODE)
    served = replace(a, annotations={**a.annotations, TO_ALLOCATE: ";"})

    assert [claim.piece for claim in claims(reader, a)] == [0]
    assert claims(reader, served) == []
    assert [claim.piece for claim in claims(reader, a)] == [0]


def test_what_a_pod_is_handed_or_loses_moves_its_turn():
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
    held, reader = HeldShares(), PodReader(QUESTION, NODE)
    share = held_by(a, "one", ids((0, 0)), [grant(0)])

    def turn():
        return [claim.container.name for claim in claims(reader, a, held=held)]

    assert turn() == ["one"]
    held.put(share)
    assert turn() == ["two"]
    held.take(share.key)
    assert turn() == ["one"]


def test_what_cannot_be_read_is_refused_each_time_with_the_same_words():
    a, reader = pod("a", [container(count=1)], [[grant(0)], [grant(1)]]), PodReader(QUESTION, NODE)

    for _ in range(2):
        (unreadable,) = reader.pending([a], HeldShares()).unreadable
        assert "shares for 2 containers" in unreadable.message


def test_pods_that_are_gone_are_forgotten():
    pods = [pod(name, [container(count=1)], [[grant(0)]]) for name in "abcdef"]
    reader = PodReader(QUESTION, NODE)
    before = claims(reader, *pods)

    claims(reader, pods[0])

    assert claims(reader, *pods)[0] is before[0]
    assert claims(reader, *pods)[1] is not before[1]
