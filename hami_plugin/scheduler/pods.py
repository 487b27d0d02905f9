"""Who has what, as a watch and our own decisions tell it. A decision counts from the moment it is made.

Several replicas of the process may run: what another one decided is read from the pod, like our own after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hami_plugin.aio import Watched
from hami_plugin.model.views import Feed, PodView, revision
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME
from hami_plugin.scheduler.engine.ledger import Entry, Ledger
from hami_plugin.scheduler.engine.ledger import entry as entry_of
from hami_plugin.scheduler.standing import Standing
from hami_plugin.vendor import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A decision of ours that the watch has not shown yet. ``revision`` is 0 until the API server has taken it;
    ``before`` is what was known of the pod until then.
    """

    entry: Entry
    before: Entry | None
    revision: int = 0


class Pods:
    """The ledger of all pods with a decision, kept by a watch."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = tuple(families)
        self.ledger = Ledger()
        self.standing = Standing(self.ledger)
        self.listed = Watched(False)
        self.shown = Watched(0)
        self.feed: Feed[PodView] = Feed(replace=self._replace, update=self._update, delete=self._delete)
        self._promises: dict[str, Promise] = {}
        self._withdrawn: dict[str, tuple[str, str]] = {}

    @property
    def promises(self) -> Mapping[str, Promise]:
        """By the pod's UID."""
        return self._promises

    def promise(self, decided: PodView) -> None:
        """Enter what was just decided: ``decided`` is the pod with its new annotations."""
        entry = entry_of(decided, self._families)
        assert entry, "a decision names a node"
        before = self.ledger.entries.get(decided.uid)
        self._promises[decided.uid] = Promise(entry=entry, before=before)
        self._withdrawn.pop(decided.uid, None)
        self.ledger.put(entry)

    def newest(self, pod: PodView) -> PodView:
        """The pod as we know it, if that is a newer version than this one: kube-scheduler's may be from before our own
        last decision.
        """
        known = self.ledger.entries.get(pod.uid)
        newer = known and revision(known.pod.resource_version) > revision(pod.resource_version)
        return known.pod if known and newer else pod

    def confirm(self, written: PodView) -> None:
        """The API server has taken a decision of ours, in this version of the pod."""
        if promise := self._promises.get(written.uid):  # else the pod is gone
            version = revision(written.resource_version)
            self._promises[written.uid] = replace(promise, revision=version)
            self.ledger.update(written)

    def break_off(self, uid: str, found: PodView | None = None) -> None:
        """The API server has not taken a decision of ours: what was known before counts again, or the pod as it was
        ``found`` with another scheduler's decision.
        """
        promise = self._promises.pop(uid, None)
        if promise is None:
            return
        self.ledger.drop(uid)
        if found:
            self.see(found)
        elif promise.before:
            self.ledger.put(promise.before)

    def withdraw(self, uid: str) -> bool:
        """Nothing fits any more: what was decided earlier on a pod that waits holds nothing. Whether there was any."""
        known = self.ledger.entries.get(uid)
        if known is None or known.pod.node:
            return False
        self._promises.pop(uid, None)
        self._withdrawn[uid] = _stamp(known.pod)
        self.ledger.drop(uid)
        return True

    def see(self, pod: PodView) -> None:
        """A version of a pod from the watch. One that is older than our own decision says nothing of it; one at a node
        is final, also where another scheduler has bound it while our decision is on its way.
        """
        self.standing.seen(pod)
        promise = self._promises.get(pod.uid)
        shown = promise and 0 < promise.revision <= revision(pod.resource_version)
        if promise and not shown and not pod.terminal and not pod.node:
            return
        self._promises.pop(pod.uid, None)
        if not pod.node and self._withdrawn.get(pod.uid) == _stamp(pod):
            return
        self._withdrawn.pop(pod.uid, None)
        self.ledger.see(pod, self._families)

    def answered(self, pod: PodView) -> None:
        """A version of a pod as an answer to a call of ours. One that the watch has shown to be gone stays gone."""
        if pod.uid in self._promises or pod.uid in self.ledger.entries or pod.uid in self.standing.unsettled:
            self.see(pod)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self.standing.end(uid)
        self._promises.pop(uid, None)
        self._withdrawn.pop(uid, None)
        self.ledger.drop(uid)

    async def shown_up_to(self, version: str, *, within: float) -> bool:
        """Whether the watch has shown everything up to this version of a pod, at the latest after so many seconds.

        The API server gives versions in the order of its writes, and a watch keeps that order.
        """
        wanted = revision(version)
        try:
            async with asyncio.timeout(within):
                while self.shown.value < wanted:
                    await self.shown.changed(self.shown.version)
        except TimeoutError:
            return False
        return True

    def _update(self, pod: PodView) -> None:
        self.see(pod)
        self._advance(pod)

    def _advance(self, pod: PodView) -> None:
        self.shown.set(max(self.shown.value, revision(pod.resource_version)))

    def _replace(self, pods: Sequence[PodView]) -> None:
        """A list may be older than our last decisions: those that it does not show are asked about one by one later."""
        there = {pod.uid for pod in pods} | self._promises.keys()
        for uid in (self.ledger.entries.keys() | self._withdrawn.keys()) - there:
            self.forget(uid)
        for pod in pods:
            self._update(pod)
        self.listed.set(True)

    def _delete(self, pod: PodView) -> None:
        self.forget(pod.uid)
        self._advance(pod)


def _stamp(pod: PodView) -> tuple[str, str]:
    return pod.annotations.get(ASSIGNED_NODE, ""), pod.annotations.get(ASSIGNED_TIME, "")
