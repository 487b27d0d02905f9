from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.protocol.nodes import NodeLock, owned_by, parse_lock, render_lock

EAST = timezone(timedelta(hours=8))
AT = datetime(2026, 8, 21, 10, 11, 12, tzinfo=EAST)

names = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=offsets).map(  # noqa: DTZ001  # bounds take none
    lambda time: time.replace(microsecond=0)
)


@settings(deadline=None)
@given(times, names, names)
def test_a_lock_comes_back_as_it_went(time: datetime, namespace: str, pod: str):
    lock = NodeLock(time=time, namespace=namespace, pod=pod)

    assert parse_lock(render_lock(lock)) == lock
    assert owned_by(render_lock(lock), namespace, pod)


def test_a_lock_is_written_as_the_scheduler_writes_it():
    assert render_lock(NodeLock(time=AT, namespace="default", pod="pod-a")) == "2026-08-21T10:11:12+08:00,default,pod-a"
    assert render_lock(NodeLock(time=AT.astimezone(UTC), namespace="n", pod="p")) == "2026-08-21T02:11:12Z,n,p"


def test_a_legacy_lock_is_a_time_and_names_nobody():
    lock = parse_lock("2026-08-21T10:11:12Z")

    assert lock == NodeLock(time=datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC))
    assert render_lock(lock) == "2026-08-21T10:11:12Z"
    assert not owned_by("2026-08-21T10:11:12Z", "default", "pod-a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-08-21T10:11:12.5+08:00", AT.replace(microsecond=500_000)),
        ("2026-08-21T10:11:12.123456789+08:00", AT.replace(microsecond=123_456)),
        ("2026-08-21T10:11:12.0000000000000000001+08:00", AT),
        ("2026-08-20T20:41:12-05:30", AT),
    ],
)
def test_any_rfc_3339_time_is_read(text: str, expected: datetime):
    assert parse_lock(f"{text},n,p").time == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b",
        ",,",
        "lock",
        "2026-08-21T10:11:12Z,ns",
        "2026-08-21T10:11:12Z,ns,pod,x",
        "2026-08-21 10:11:12Z,ns,pod",
        "2026-08-21T10:11:12,ns,pod",
        "2026-08-21t10:11:12z,ns,pod",
        "2026-08-21T10:11Z,ns,pod",
        "2026-02-30T10:11:12Z,ns,pod",
        "2026-08-21T24:00:00Z,ns,pod",
        "2026-08-21T10:11:60Z,ns,pod",
        "0000-01-01T00:00:00Z,ns,pod",
        "2026-08-21T10:11:12+99:99,ns,pod",
        "2026-08-21T10:11:12Z,n\x00s,pod",
        "\u0662026-08-21T10:11:12Z,ns,pod",
    ],
)
def test_anything_else_is_an_error(text: str):
    with pytest.raises(WireError, match="node lock"):
        parse_lock(text)


@pytest.mark.parametrize(
    ("namespace", "name", "owned"),
    [
        ("default", "pod-a", True),
        ("default", "pod", False),
        ("default", "od-a", False),
        ("ault", "pod-a", False),
        ("other", "pod-a", False),
        ("", "pod-a", False),
    ],
)
def test_only_the_exact_pod_owns_a_lock(namespace: str, name: str, owned: bool):
    assert owned_by("2026-08-21T10:11:12+08:00,default,pod-a", namespace, name) is owned


@pytest.mark.parametrize(
    "lock",
    [
        NodeLock(time=datetime(2026, 8, 21)),  # noqa: DTZ001  # what is refused
        NodeLock(time=AT, namespace="a,b", pod="c"),
    ],
)
def test_a_lock_that_nobody_could_read_is_not_written(lock: NodeLock):
    with pytest.raises(WireError):
        render_lock(lock)


def test_a_local_time_of_odd_seconds_is_written_in_utc():
    amsterdam_1930 = timezone(timedelta(minutes=19, seconds=32))
    text = render_lock(NodeLock(time=datetime(1930, 1, 1, 12, 0, 0, tzinfo=amsterdam_1930), namespace="n", pod="p"))

    assert text == "1930-01-01T11:40:28Z,n,p"
