"""May a scheduler take a node for a pod? A node is bound to one pod at a time, until its daemon has answered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hami_plugin.errors import WireError
from hami_plugin.model.views import PodView
from hami_plugin.protocol.lock import NodeLock, owned_by, parse_lock, render_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Yes: write this text, if nobody has changed the node meanwhile."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine:
    """The pod has the node already, for a family that shares the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """No. Another pod has it, and it is not known to be stuck."""

    why: str


def claim(
    text: str, pod: PodView, *, now: datetime, expires: timedelta, gone: bool = False, named: bool = True
) -> Take | Mine | Busy:
    """Read the lock's ``text``, empty for none. ``gone``: the pod that it names does not exist any more.

    A lock that nobody can read is nobody's to break. ``named`` is false for locks that name no pod.
    """
    owner = NodeLock(time=now, namespace=pod.namespace, pod=pod.name) if named else NodeLock(time=now)
    mine = Take(text=render_lock(owner))
    if not text:
        return mine
    if named and owned_by(text, pod.namespace, pod.name):
        return Mine()
    try:
        lock = parse_lock(text)
    except WireError as error:
        return Busy(why=f"{error}; remove the annotation if no pod is being bound")
    if (gone and lock.pod) or now - lock.time > expires:
        return mine
    holder = f"{lock.namespace}/{lock.pod}" if lock.pod else "an unnamed pod"
    return Busy(why=f"locked for {holder} within {expires.total_seconds():.0f} s")
