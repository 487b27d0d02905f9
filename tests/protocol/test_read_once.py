"""Decisions that are looked at in every Allocate are read once, and never out of date."""

from dataclasses import replace

import pytest

from hami_plugin.errors import WireError
from hami_plugin.protocol.decisions import ReadOnce, claims
from tests.support.builders import QUESTION, TO_ALLOCATE, container, grant, pod


def test_the_answer_is_that_of_a_first_reading():
    a = pod("a", [container(count=1)], [[grant(0)]])
    read = ReadOnce()

    assert read(a, QUESTION) == claims(a, QUESTION)
    assert read(a, QUESTION) is read(a, QUESTION)


def test_a_new_version_of_the_pod_is_read_anew():
    a = pod("a", [container(count=1)], [[grant(0)]])
    served = replace(a, annotations={**a.annotations, TO_ALLOCATE: ";"})
    read = ReadOnce()

    assert [claim.piece for claim in read(a, QUESTION)] == [0]
    assert [claim.piece for claim in read(served, QUESTION)] == [None]
    assert [claim.piece for claim in read(a, QUESTION)] == [0]


def test_another_question_about_the_same_pod_has_its_own_answer():
    a = pod("a", [container(count=1)], [[grant(0)]])
    read = ReadOnce()
    read(a, QUESTION)

    assert read(a, replace(QUESTION, resource="other.io/card", to_allocate="other.io/x", allocated="other.io/y")) == ()


def test_what_cannot_be_read_is_refused_each_time_with_the_same_words():
    a = pod("a", [container(count=1)], [[grant(0)], [grant(1)]])
    read = ReadOnce()

    for _ in range(2):
        with pytest.raises(WireError, match="shares for 2 containers"):
            read(a, QUESTION)


def test_pods_that_are_gone_are_forgotten():
    pods = [pod(name, [container(count=1)], [[grant(0)]]) for name in "abcdef"]
    read = ReadOnce()
    before = [read(p, QUESTION) for p in pods]

    read.keep(pods[:1])

    assert read(pods[0], QUESTION) is before[0]
    assert read(pods[1], QUESTION) is not before[1]
