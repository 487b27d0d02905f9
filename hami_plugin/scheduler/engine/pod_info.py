"""Which pods have what on which node: how a decision is written to a pod, read from it once, and checked again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

from hami_plugin.model.views import PodPatch, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, PHASE_ALLOCATING
from hami_plugin.scheduler.engine.devices import NodeInfo, PodAllocation
from hami_plugin.scheduler.engine.fit import PodFit, refit_pod
from hami_plugin.scheduler.engine.node_info import (
    contested_parts,
    node_of,
    pod_allocations,
    requested_families,
    scheduling_policies,
    subtract_held,
)
from hami_plugin.scheduler.engine.node_resources import insufficient_ids
from hami_plugin.sdk import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """One pod's part of a node, by device type. ``problems`` are annotations that could not be read."""

    pod: PodView
    node: str
    held: Mapping[str, PodAllocation] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def updated(self, pod: PodView) -> PodInfo:
        """The same part, of a newer version of the pod: usage depends on its phase."""
        return replace(
            self, pod=pod, held={device_type: replace(one, pod=pod) for device_type, one in self.held.items()}
        )


def pod_info(pod: PodView, families: Iterable[Family]) -> PodInfo | None:
    """What a pod's annotations say. None when no scheduler has decided on it."""
    if not pod.annotations.get(ASSIGNED_NODE):
        return None
    problems: list[str] = []
    held = pod_allocations(pod, families, problems)
    return PodInfo(pod=pod, node=node_of(pod), held=held, problems=tuple(problems))


class ChangeLog:
    """Names of what has changed, in the order of their last change, so that a reader works out only those anew.

    The oldest are forgotten once there are too many: a reader that was last here before then starts over.
    """

    def __init__(self, room: int = 50_000) -> None:
        self.mark = 0
        self._room = room
        self._forgotten = 0
        self._at: dict[str, int] = {}

    def note(self, name: str) -> None:
        """It has changed."""
        self.mark += 1
        self._at.pop(name, None)
        self._at[name] = self.mark
        if len(self._at) > self._room:
            there = list(self._at.items())
            self._forgotten = there[self._room // 2][1]
            self._at = dict(there[self._room // 2 + 1 :])

    def since(self, mark: int) -> Sequence[str] | None:
        """What has changed after this mark; None when that is not known any more."""
        if mark < self._forgotten:
            return None
        return [name for name, _ in takewhile(lambda one: one[1] > mark, reversed(self._at.items()))]


class PodIndex:
    """Entries by the pod's UID, and by node. What is asked often is kept: a node's entries are not searched for.

    ``changes`` names the nodes whose entries have changed.
    """

    def __init__(self, entries: Iterable[PodInfo] = ()) -> None:
        self.changes = ChangeLog()
        self._entries: dict[str, PodInfo] = {}
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        self._listed: dict[str, tuple[PodInfo, ...]] = {}
        self._namespaces: dict[str, dict[str, PodInfo]] = {}
        for one in entries:
            self.put(one)

    @property
    def entries(self) -> Mapping[str, PodInfo]:
        return self._entries

    def on(self, node: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A node's entries, without that of one pod. The same object while nothing changes."""
        there = self._nodes.get(node, {})
        if without in there:
            return [one for uid, one in there.items() if uid != without]
        listed = self._listed.get(node)
        if listed is None:
            listed = self._listed[node] = tuple(there.values())
        return listed

    def keep(self, nodes: Collection[str]) -> None:
        """Forget what was asked of other nodes, once it is the most."""
        if len(self._listed) > 2 * len(nodes):
            self._listed = {name: entries for name, entries in self._listed.items() if name in nodes}

    def of(self, namespace: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A namespace's entries, without that of one pod."""
        return [one for uid, one in self._namespaces.get(namespace, {}).items() if uid != without]

    def see(self, pod: PodView, families: Iterable[Family]) -> None:
        """A version of a pod from a watch. One that has ended has nothing; one that is being deleted keeps what it has.

        A version without a decision may be older than our own: then the decision stands. One that was taken back says
        so.
        """
        if pod.terminal or (not pod.node and pod.annotations.get(ASSIGNED_NODE) == ""):
            self.drop(pod.uid)
        elif pod.deleted and pod.uid in self._entries:
            self.update(pod)
        elif found := pod_info(pod, families):
            self.put(found)
        else:
            self.update(pod)

    def put(self, one: PodInfo) -> bool:
        """Enter a pod, in place of what was known of it. Whether it is new."""
        new = not self.drop(one.pod.uid)
        self._entries[one.pod.uid] = one
        self._nodes.setdefault(one.node, {})[one.pod.uid] = one
        self._namespaces.setdefault(one.pod.namespace, {})[one.pod.uid] = one
        self._listed.pop(one.node, None)
        self.changes.note(one.node)
        return new

    def update(self, pod: PodView) -> None:
        """A newer version of a pod that is known. What it has stays as it is."""
        known = self._entries.get(pod.uid)
        if known:
            self.put(known.updated(pod))

    def drop(self, uid: str) -> bool:
        """The pod is gone. Whether it was known."""
        known = self._entries.pop(uid, None)
        if known is None:
            return False
        self._listed.pop(known.node, None)
        self.changes.note(known.node)
        pods = self._nodes[known.node]
        del pods[uid]
        if not pods:
            del self._nodes[known.node]
        others = self._namespaces[known.pod.namespace]
        del others[uid]
        if not others:
            del self._namespaces[known.pod.namespace]
        return True


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def patch(families: Iterable[Family], pod: PodView, placed: PodFit) -> Mapping[str, str]:
    """What is written to the pod beside the time: its node, and each family's part, one entry for each container."""
    written = {ASSIGNED_NODE: placed.node_info.node.name}
    decided = replace(pod, annotations={**pod.annotations, **written})
    for family in families:
        if family.resources.device_type in placed.given:
            written |= family.rules.patch(family, decided, placed.given)
    return written


def assignment(families: Iterable[Family], pod: PodView, placed: PodFit, now: datetime) -> PodPatch:
    """The whole decision, before the pod is bound."""
    return patch_with_label({**patch(families, pod, placed), ASSIGNED_TIME: _seconds(now)})


def bind_phase(now: datetime) -> PodPatch:
    """The pod is about to be bound: the node's daemon may hand out what was decided."""
    return PodPatch(annotations={BIND_PHASE: PHASE_ALLOCATING, BIND_TIME: _seconds(now)})


UNASSIGNED = PodPatch(annotations={ASSIGNED_NODE: ""})
"""The pod holds nothing of any node: what was decided before is no more, for any scheduler that reads it."""


def patch_with_label(annotations: Mapping[str, str]) -> PodPatch:
    """Annotations, and the pod's node as a label too: monitors select pods by it.

    A node's name may be longer than a label can be. Then there is none, since the API server would refuse it all.
    """
    node = annotations.get(ASSIGNED_NODE, "")
    return PodPatch(annotations=annotations, labels={ASSIGNED_NODE: node} if _LABEL.fullmatch(node) else {})


def _seconds(now: datetime) -> str:
    return str(int(now.timestamp()))


def conflict(
    families: tuple[Family, ...], node_info: NodeInfo, own: PodInfo, others: Sequence[PodInfo], *, order: str
) -> str:
    """Why a pod cannot have what was decided, beside those that are bound to its node; empty when it can.

    ``others`` may be of other schedulers' hands, decided at the same time.
    """
    held = [one.held for one in others]
    pieces = {device_type: [piece for piece in holding.pieces if piece] for device_type, holding in own.held.items()}
    left = subtract_held(node_info, families, held)
    why = refit_pod(own.pod, scheduling_policies(requested_families(own.pod, families)), left, pieces, order)
    return why or contested_parts(node_info, families, own.held, left) or insufficient_ids(own.pod, left, families)
