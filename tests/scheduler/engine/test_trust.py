"""What a scheduler concludes of a node's daemon from the handshake and from what the kubelet counts."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hami_plugin.model.views import NodeView
from hami_plugin.protocol.nodes import render_answer, render_question
from hami_plugin.scheduler.engine.node_info import Handshakes, check_handshakes
from tests.support.pods import nvidia, of_vendor

(FAMILY,) = nvidia()
WORD, HANDSHAKE, REGISTER = (
    FAMILY.resources.device_type,
    FAMILY.rules.annotations.handshake,
    FAMILY.rules.annotations.register,
)
COUNT = FAMILY.resources.count
NOW = datetime(2026, 8, 21, 10, 11, 12)  # noqa: DTZ001  # the wire has no zone
JUST, LONG_AGO = render_question(NOW - timedelta(seconds=59)), render_question(NOW - timedelta(seconds=60))


def node(text: str | None = None, counted: int | None = None, register: str = "x") -> NodeView:
    handshake = {} if text is None else {HANDSHAKE: text}
    allocatable = {} if counted is None else {COUNT: str(counted)}
    return NodeView(name="n1", annotations={REGISTER: register, **handshake}, allocatable=allocatable)


def judged(now: NodeView, *, before: NodeView | None = None, silent: bool = False) -> Handshakes:
    quiet = frozenset({WORD} if silent else ())
    return check_handshakes(now, {WORD: FAMILY}, NOW, before=before or now, silent=quiet)


OFFERED, SILENT = frozenset({WORD}), frozenset({WORD})
ASKED, TAKEN_BACK = {HANDSHAKE: render_question(NOW)}, {HANDSHAKE: None}


@pytest.mark.parametrize(
    "text", [None, "", "Deleted_2026-08-21 10:00:00", render_answer(NOW), "Reported 2025-09-26 10:11:12"]
)
@pytest.mark.parametrize("counted", [None, 10])
def test_whoever_has_not_been_asked_is_asked_and_believed_meanwhile(text, counted):
    assert judged(node(text, counted)) == Handshakes(offered=OFFERED, write=ASKED)


@pytest.mark.parametrize(("text", "counted"), [(JUST, None), (JUST, 10), (LONG_AGO, 10), ("Requesting_some day", None)])
def test_whoever_may_still_answer_or_is_counted_is_believed_and_left_alone(text, counted):
    assert judged(node(text, counted)) == Handshakes(offered=OFFERED)


def test_a_daemon_that_does_not_answer_for_a_minute_offers_nothing_and_the_question_is_taken_back():
    assert judged(node(LONG_AGO)) == Handshakes(offered=frozenset(), silent=SILENT, write=TAKEN_BACK)


def test_a_silent_daemon_is_not_asked_again():
    assert judged(node(), silent=True) == Handshakes(offered=frozenset(), silent=SILENT)


def test_a_question_that_is_taken_back_was_found_unanswered_by_another_scheduler():
    assert judged(node(), before=node(JUST)) == Handshakes(offered=frozenset(), silent=SILENT)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (node(counted=10), node()),
        (node(register="y"), node()),
        (node(render_answer(NOW)), node()),
    ],
    ids=["the kubelet counts", "another register", "an answer"],
)
def test_a_silent_daemon_is_heard_again_when_it_says_anything(now, before):
    assert judged(now, before=before, silent=True) == Handshakes(offered=OFFERED, write=ASKED)


def test_a_question_of_somebody_else_does_not_wake_the_silent():
    assert judged(node(JUST), before=node(), silent=True) == Handshakes(offered=frozenset(), silent=SILENT)


@pytest.mark.parametrize("text", [JUST, LONG_AGO])
def test_what_the_kubelet_counts_as_none_is_not_offered_however_fresh_the_handshake(text):
    assert judged(node(text, 0)).offered == frozenset()


def test_a_family_without_a_handshake_goes_by_the_count_alone():
    (family,) = of_vendor("amd", {})
    assert not family.rules.annotations.handshake

    def offered(counted: int | None) -> bool:
        allocatable = {} if counted is None else {family.resources.count: str(counted)}
        seen = NodeView(name="n1", allocatable=allocatable)
        trust = check_handshakes(seen, {family.resources.device_type: family}, NOW, before=None, silent=frozenset())
        assert not trust.write
        return bool(trust.offered)

    assert [offered(None), offered(8), offered(0)] == [True, True, False]


def test_an_amount_that_cannot_be_read_counts_as_never_heard_of():
    odd = replace(node(LONG_AGO), allocatable={COUNT: "many"})

    assert judged(odd).silent == SILENT
