"""The node lock, under which a scheduler binds one pod at a time: when it was taken, and for whom."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from hami_plugin.errors import WireError
from hami_plugin.protocol.grammar import bounded, printable, shown

# RFC 3339 as Go reads it: capital letters, seconds, any number of decimals, an offset or Z.
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """A lock. ``namespace`` and ``pod`` are empty in the legacy form, which names no owner."""

    time: datetime
    namespace: str = ""
    pod: str = ""


def parse_lock(text: str) -> NodeLock:
    """Read ``<time>,<namespace>,<pod>``, or a time alone."""
    parts = bounded(text, "node lock").split(",")
    match parts:
        case [time]:
            return NodeLock(time=_time(time))
        case [time, namespace, pod]:
            return NodeLock(
                time=_time(time),
                namespace=printable(namespace, "node lock: namespace"),
                pod=printable(pod, "node lock: pod"),
            )
    raise WireError(f"node lock: {shown(text)} has {len(parts)} parts instead of time, namespace and pod")


def render_lock(lock: NodeLock) -> str:
    """The annotation's text, to the second. A lock without an owner has the legacy form."""
    offset = lock.time.utcoffset()
    if offset is None:
        raise WireError(f"node lock: {lock.time.isoformat()} has no time zone")
    # An offset with seconds cannot be written, so such a time is written in UTC.
    time = lock.time.astimezone(UTC) if not offset or offset % timedelta(minutes=1) else lock.time
    stamp = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    if not lock.namespace and not lock.pod:
        return stamp
    names = (printable(name, "node lock", without=",") for name in (lock.namespace, lock.pod))
    return ",".join((stamp, *names))


def owned_by(text: str, namespace: str, name: str) -> bool:
    """Whether the lock names exactly this pod. A legacy lock names nobody."""
    return text.endswith(f",{namespace},{name}")


def _time(text: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    if not match:
        raise WireError(f"node lock: {shown(text)} is not a time such as 2026-08-21T10:11:12+08:00")
    *numbers, decimals, sign, hours, minutes = match.groups()
    micros = int((decimals or "").ljust(6, "0")[:6])
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    year, month, day, hour, minute, second = (int(number) for number in numbers)
    try:
        return datetime(year, month, day, hour, minute, second, micros, tzinfo=timezone(offset) if offset else UTC)
    except ValueError as error:
        raise WireError(f"node lock: {shown(text)} is not a time: {error}") from error
