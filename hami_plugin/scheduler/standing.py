"""Decisions that stand: their pods are bound or being bound, and kube-scheduler may ask about them all the same.

Our own annotations are a change of a pod that waits, for which kube-scheduler queues it once more. What it asks then
may come while the pod is being bound; another answer would name devices that the node's daemon does not hand out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A pod that is being bound, or was, and that the watch has not shown at its node yet."""

    pod: PodView
    node: str
    doubtful: bool = False


class Standing:
    """Which pods have a node for good, and whose turn it is to write to a pod.

    A pod is kept from the beginning of its bind until the watch shows it at a node, or gone.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._binding: dict[str, Binding] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def unsettled(self) -> Mapping[str, Binding]:
        """By the pod's UID, what the watch has not settled yet."""
        return self._binding

    def turn(self, uid: str) -> asyncio.Lock:
        """Held while a decision about this pod is written, so that no bind begins with half of it."""
        return self._turns.setdefault(uid, asyncio.Lock())

    def node_of(self, uid: str) -> str:
        """The node to which the pod is bound or being bound; empty while it may still go anywhere."""
        binding = self._binding.get(uid)
        return self._bound(uid) or (binding.node if binding else "")

    def begin(self, pod: PodView, node: str) -> None:
        """The pod is being bound from now on. Once the watch shows it at its node, that counts instead."""
        self._binding[pod.uid] = Binding(pod=pod, node=node)

    def end(self, uid: str) -> None:
        """The pod was not bound, or is gone."""
        self._binding.pop(uid, None)

    def doubt(self, uid: str) -> None:
        """Nobody knows whether the pod was bound. Its node stands until somebody has looked."""
        if binding := self._binding.get(uid):  # else the watch knows meanwhile
            self._binding[uid] = replace(binding, doubtful=True)

    def doubtful(self, uid: str) -> bool:
        """Whether it is still to be seen if the pod was bound."""
        binding = self._binding.get(uid)
        return binding is not None and binding.doubtful

    def seen(self, pod: PodView) -> None:
        """The API server has shown the pod. At a node it is settled."""
        if pod.node:
            self._binding.pop(pod.uid, None)

    def _bound(self, uid: str) -> str:
        known = self._ledger.entries.get(uid)
        return known.pod.node if known else ""
