from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.protocol.nodes import (
    Handshake,
    HandshakeState,
    Liveness,
    is_question,
    liveness,
    parse_handshake,
    render_answer,
)

AT = datetime(2026, 8, 21, 10, 11, 12)  # noqa: DTZ001  # the wire has no zone
NOW = AT + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Requesting_2026-08-21 10:11:12", Handshake(state=HandshakeState.REQUESTING, time=AT)),
        ("Requesting", Handshake(state=HandshakeState.REQUESTING)),
        ("Requesting_yesterday", Handshake(state=HandshakeState.REQUESTING)),
        ("Requesting_2026-02-30 10:11:12", Handshake(state=HandshakeState.REQUESTING)),
        (
            "Reported 2026-08-21 10:11:12.123456789 +0800 CST m=+30.001",
            Handshake(state=HandshakeState.REPORTED, time=AT),
        ),
        ("Reported_2026-08-21 10:11:12", Handshake(state=HandshakeState.REPORTED, time=AT)),
        ("Reported_2026.08.21 10:11:12", Handshake(state=HandshakeState.REPORTED)),
        ("Deleted_2026-08-21 10:11:12", Handshake(state=HandshakeState.DELETED, time=AT)),
        ("Unknown", Handshake(state=HandshakeState.OTHER)),
        ("", Handshake(state=HandshakeState.OTHER)),
    ],
)
def test_every_form_that_was_ever_on_the_wire_is_read(text: str, expected: Handshake):
    assert parse_handshake(text) == expected


def test_our_answer_is_no_question_and_carries_its_time():
    text = render_answer(AT.replace(tzinfo=UTC))

    assert text == "Reported_2026-08-21 10:11:12"
    assert parse_handshake(text).time == AT
    assert not is_question(text)
    assert is_question("Requesting_2026-08-21 10:11:12")


@pytest.mark.parametrize(
    ("text", "allocatable", "expected"),
    [
        ("Requesting_2026-08-21 10:11:13", 0, Liveness(healthy=True, asks=False)),
        ("Requesting_2026-08-21 10:11:12", 0, Liveness(healthy=False, asks=False)),
        ("Requesting_2026-08-21 10:11:12", 8, Liveness(healthy=True, asks=False)),
        ("Requesting_soon", 0, Liveness(healthy=True, asks=False)),
        ("Reported_2026-08-21 10:11:12", 0, Liveness(healthy=True, asks=True)),
        ("", 0, Liveness(healthy=True, asks=True)),
    ],
)
def test_a_scheduler_waits_a_minute_and_then_looks_at_the_kubelets_count(
    text: str, allocatable: int, expected: Liveness
):
    assert liveness(text, now=NOW, allocatable=allocatable) == expected
