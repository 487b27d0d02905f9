"""Which pods have what on which node: how a decision is written to a pod, and read from it once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, PHASE_ALLOCATING
from hami_plugin.scheduler.engine.devices import PodAllocation
from hami_plugin.scheduler.engine.fit import PodFit
from hami_plugin.scheduler.engine.node_info import node_of, pod_allocations
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


class PodIndex:
    """Entries by the pod's UID, and by node. What is asked often is kept: a node's entries are not searched for."""

    def __init__(self, entries: Iterable[PodInfo] = ()) -> None:
        self._entries: dict[str, PodInfo] = {}
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        for one in entries:
            self.put(one)

    @property
    def entries(self) -> Mapping[str, PodInfo]:
        return self._entries

    def on(self, node: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A node's entries, without that of one pod."""
        return [one for uid, one in self._nodes.get(node, {}).items() if uid != without]

    def of(self, namespace: str, *, without: str | None = None) -> Sequence[PodInfo]:
        """A namespace's entries, without that of one pod."""
        return [one for uid, one in self._entries.items() if one.pod.namespace == namespace and uid != without]

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
        return new

    def update(self, pod: PodView) -> None:
        """A newer version of a pod that is known. What it has stays as it is."""
        known = self._entries.get(pod.uid)
        if known:
            self._entries[pod.uid] = self._nodes[known.node][pod.uid] = known.updated(pod)

    def drop(self, uid: str) -> bool:
        """The pod is gone. Whether it was known."""
        known = self._entries.pop(uid, None)
        if known is None:
            return False
        pods = self._nodes[known.node]
        del pods[uid]
        if not pods:
            del self._nodes[known.node]
        return True


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPatch:
    """What to write to a pod's metadata."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def merge_patch(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """The body of a merge patch."""
        labels = {"labels": self.labels} if self.labels else {}
        return {"metadata": {"annotations": self.annotations, **labels}}


def patch(families: Iterable[Family], pod: PodView, placed: PodFit) -> Mapping[str, str]:
    """What is written to the pod beside the time: its node, and each family's part, one entry for each container."""
    written = {ASSIGNED_NODE: placed.node_info.node.name}
    decided = replace(pod, annotations={**pod.annotations, **written})
    for family in families:
        if family.device_type in placed.given:
            written |= family.rules.patch(family, decided, placed.given)
    return written


def assignment(families: Iterable[Family], pod: PodView, placed: PodFit, now: datetime) -> PodPatch:
    """The whole decision, before the pod is bound."""
    return labelled({**patch(families, pod, placed), ASSIGNED_TIME: _seconds(now)})


def bind_phase(now: datetime) -> PodPatch:
    """The pod is about to be bound: the node's daemon may hand out what was decided."""
    return PodPatch(annotations={BIND_PHASE: PHASE_ALLOCATING, BIND_TIME: _seconds(now)})


UNASSIGNED = PodPatch(annotations={ASSIGNED_NODE: ""})
"""The pod holds nothing of any node: what was decided before is no more, for any scheduler that reads it."""


def labelled(annotations: Mapping[str, str]) -> PodPatch:
    """Annotations, and the pod's node as a label too: monitors select pods by it.

    A node's name may be longer than a label can be. Then there is none, since the API server would refuse it all.
    """
    node = annotations.get(ASSIGNED_NODE, "")
    return PodPatch(annotations=annotations, labels={ASSIGNED_NODE: node} if _LABEL.fullmatch(node) else {})


def _seconds(now: datetime) -> str:
    return str(int(now.timestamp()))
