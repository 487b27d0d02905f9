"""The handshake annotation: a scheduler asks whether the node's daemon is alive, and older daemons answer.

Schedulers since HAMi 2.8 take the kubelet's device count for an answer. For those of 2.7 the daemon writes its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

ANSWER_TIMEOUT = timedelta(seconds=60)
"""How long a scheduler waits for an answer before it looks at the kubelet's device count."""

_STAMP = "%Y-%m-%d %H:%M:%S"
# A stamp after '_', or Go's way of printing a time after a blank, with decimals, offset and more.
_STAMPED = re.compile(r"[^_ ]*[_ ]([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+ [+-][0-9]{4} .*)?")


class HandshakeState(StrEnum):
    """The state in a value. ``OTHER`` is anything else, and no value."""

    REQUESTING = "Requesting"
    REPORTED = "Reported"
    DELETED = "Deleted"
    OTHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A value that was read. ``time`` is the writer's local time, which has no zone; None when it is unreadable."""

    state: HandshakeState
    time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What a scheduler concludes: whether the node's devices count, and whether it asks again."""

    healthy: bool
    asks: bool


def parse_handshake(text: str) -> Handshake:
    """Parse any value. Nothing is an error: a scheduler overwrites what it does not understand."""
    state = next((state for state in HandshakeState if state and state in text), HandshakeState.OTHER)
    return Handshake(state=state, time=_time(text))


def is_question(text: str) -> bool:
    """Whether a scheduler has asked and has no answer yet."""
    return parse_handshake(text).state is HandshakeState.REQUESTING


def render_answer(now: datetime) -> str:
    """The answer. No scheduler reads its time, only that it is no question; each asks again on the next round."""
    return f"{HandshakeState.REPORTED}_{now.strftime(_STAMP)}"


def render_question(now: datetime) -> str:
    """What a scheduler asks, at its local time ``now``."""
    return f"{HandshakeState.REQUESTING}_{now.strftime(_STAMP)}"


def liveness(text: str, *, now: datetime, allocatable: int) -> Liveness:
    """What a scheduler of today concludes, at its local time ``now``, with ``allocatable`` devices at the kubelet.

    A question of less than a minute, or one whose time cannot be read, is left alone.
    """
    handshake = parse_handshake(text)
    if handshake.state is not HandshakeState.REQUESTING:
        return Liveness(healthy=True, asks=True)
    waiting = handshake.time is None or now - handshake.time < ANSWER_TIMEOUT
    return Liveness(healthy=waiting or allocatable > 0, asks=False)


def _time(text: str) -> datetime | None:
    match = _STAMPED.fullmatch(text)
    if not match:
        return None
    try:
        return datetime.fromisoformat(match.group(1))
    except ValueError:
        return None
