"""Decisions that stand: their pods are bound or being bound, and kube-scheduler may ask about them all the same.

Our own annotations are a change of a pod that waits, for which kube-scheduler queues it once more. What it asks then
may come while the pod is being bound; another answer would name devices that the node's daemon does not hand out.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from hami_plugin.scheduling.ledger import Ledger


class Standing:
    """Which pods have a node for good, and whose turn it is to write to a pod."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._binding: dict[str, str] = {}
        self._doubtful: set[str] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, uid: str) -> asyncio.Lock:
        """Held while a decision about this pod is written, so that no bind begins with half of it."""
        return self._turns.setdefault(uid, asyncio.Lock())

    def node_of(self, uid: str) -> str:
        """The node to which the pod is bound or being bound; empty while it may still go anywhere."""
        return self._bound(uid) or self._binding.get(uid, "")

    def begin(self, uid: str, node: str) -> None:
        """The pod is being bound from now on. Once the watch shows it at its node, that counts instead."""
        self._binding = {one: where for one, where in self._binding.items() if not self._bound(one)}
        self._binding[uid] = node
        self._doubtful.discard(uid)

    def end(self, uid: str) -> None:
        """The pod was not bound."""
        self._binding.pop(uid, None)
        self._doubtful.discard(uid)

    def doubt(self, uid: str) -> None:
        """Nobody knows whether the pod was bound. Its node stands until somebody has looked."""
        self._doubtful.add(uid)

    def doubtful(self, uid: str) -> bool:
        """Whether it is still to be seen if the pod was bound."""
        return uid in self._doubtful and not self._bound(uid)

    def _bound(self, uid: str) -> str:
        known = self._ledger.entries.get(uid)
        return known.pod.node if known else ""
