"""Who may take a node: one pod at a time, and nobody waits for a lock whose pod will never answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.model.views import PodView
from hami_plugin.protocol.nodes import NodeLock, parse_lock, render_lock
from hami_plugin.scheduler.extender.bind import LockedByAnother, LockHeld, TakeLock, claim

NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
EXPIRES = timedelta(minutes=5)
POD = PodView(uid="u", namespace="ns", name="a")


def lock(pod: str = "b", *, age: timedelta = timedelta(0)) -> str:
    return render_lock(NodeLock(time=NOW - age, namespace="ns" if pod else "", pod=pod))


def test_a_free_node_is_taken_in_the_pods_name():
    answer = claim("", POD, now=NOW, expires=EXPIRES)

    assert isinstance(answer, TakeLock)
    assert parse_lock(answer.text) == NodeLock(time=NOW, namespace="ns", pod="a")


def test_a_lock_without_names_says_only_when():
    answer = claim("", POD, now=NOW, expires=EXPIRES, named=False)

    assert answer == TakeLock(text="2026-08-21T10:11:12Z")


def test_a_pod_takes_a_node_twice_for_two_families():
    assert claim(lock("a", age=EXPIRES * 2), POD, now=NOW, expires=EXPIRES) == LockHeld()


def test_a_lock_without_names_is_nobodys_own():
    assert isinstance(claim(lock(""), POD, now=NOW, expires=EXPIRES, named=False), LockedByAnother)


@pytest.mark.parametrize("text", [lock("b", age=EXPIRES), lock(""), lock("aa"), "yesterday,ns,b", "x"])
def test_another_pods_lock_is_respected_while_it_may_be_needed(text: str):
    answer = claim(text, POD, now=NOW, expires=EXPIRES)

    assert isinstance(answer, LockedByAnother)
    assert answer.why


def test_a_lock_that_has_expired_is_taken():
    assert isinstance(claim(lock(age=EXPIRES + timedelta(seconds=1)), POD, now=NOW, expires=EXPIRES), TakeLock)


def test_a_lock_whose_pod_is_gone_is_taken_at_once():
    assert isinstance(claim(lock(), POD, now=NOW, expires=EXPIRES, gone=True), TakeLock)
    assert isinstance(claim(lock(""), POD, now=NOW, expires=EXPIRES, gone=True), LockedByAnother)
