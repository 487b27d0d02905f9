"""Does a node's daemon live? Asked by the handshake, answered by the kubelet's count: what a scheduler concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hami_plugin.model.quantity import whole
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.handshake import asking, believed, question
from hami_plugin.sdk import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Of one node: the families whose devices are offered, those found silent, and what to write to the node."""

    offered: frozenset[str]
    silent: frozenset[str] = frozenset()
    write: Mapping[str, str | None] = field(default_factory=dict)


def trusted(
    node: NodeView, families: Mapping[str, Family], now: datetime, *, before: NodeView | None, silent: frozenset[str]
) -> Trust:
    """Judge each of these families, which have devices on the node, at the scheduler's local time.

    ``before`` is the node as it was seen last, and ``silent`` what was concluded then. A question that is taken back
    was found unanswered by another scheduler. A silent daemon is heard again when it writes, or the kubelet counts.
    """
    offered: set[str] = set()
    quiet: set[str] = set()
    write: dict[str, str | None] = {}
    for device_type, family in families.items():
        count, key = counted(node, family), family.annotations.handshake
        if key:
            text = node.annotations.get(key, "")
            belief = believed(text, now=now, allocatable=count or 0)
            if not belief.healthy or (not count and _unheard(node, family, before, known=device_type in silent)):
                quiet.add(device_type)
                if not belief.healthy:
                    write[key] = None
                continue
            if belief.asks:
                write[key] = question(now)
        if count != 0:
            offered.add(device_type)
    return Trust(offered=frozenset(offered), silent=frozenset(quiet), write=write)


def counted(node: NodeView, family: Family) -> int | None:
    """How many of a family's devices the kubelet counts; None where it has never heard of them, or says so unreadably.

    0 is what remains when the daemon has gone: a pod that came then would be refused by the kubelet.
    """
    text = node.allocatable.get(family.resources.count)
    try:
        return None if text is None else whole(text)
    except ValueError:
        return None


def _unheard(node: NodeView, family: Family, before: NodeView | None, *, known: bool) -> bool:
    """Whether the daemon is silent still, or was found so by another scheduler just now."""
    keys = family.annotations
    text = node.annotations.get(keys.handshake, "")
    if before is None:
        return False
    if asking(before.annotations.get(keys.handshake, "")) and not text:
        return True
    same_devices = before.annotations.get(keys.register) == node.annotations.get(keys.register)
    return known and same_devices and (not text or asking(text))
