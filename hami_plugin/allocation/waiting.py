"""The pods that wait for a resource, and which of them the kubelet asks for. It may be ahead of our watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hami_plugin.allocation.identity import Found, Identity, Pending, Repeated, Unknown, identify, pending, stand_ins
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.errors import RefusalReason
from hami_plugin.protocol.decisions import Claim, Question, ReadOnce


class PendingPods:
    """``node`` is this node's name. Both waits end after ``within`` seconds with what is known by then.

    A watch may have stalled without anybody noticing. So where nobody fits by then, ``refresh`` has this node's pods
    read again; it answers whether it is its turn, and then there is as much time once more. ``room`` is how many ids
    each device has that the kubelet may hand out.
    """

    def __init__(
        self,
        question: Question,
        *,
        pods: PodTable,
        ledger: Ledger,
        settlement: Settlement,
        node: str,
        within: float,
        room: Callable[[], Mapping[str, int]] = dict,
        refresh: Callable[[], bool] = lambda: False,
    ) -> None:
        self._question = question
        self._pods = pods
        self._ledger = ledger
        self._settlement = settlement
        self._node = node
        self._within = within
        self._room = room
        self._refresh = refresh
        self._read = ReadOnce()

    def known(self) -> Pending:
        """Who waits as of now, without pods whose decision has failed."""
        pods = [pod for pod in self._pods.pods if not self._settlement.failed(pod.uid)]
        self._read.keep(pods)
        known = pending(pods, self._ledger.held, self._question, self._node, read=self._read, ranks=self._pods.ranks)
        return replace(known, instead=partial(self._instead, known.next))

    def _instead(self, others: Sequence[Claim], claim: Claim) -> Sequence[str]:
        """The devices whose ids stand for a claim's own, as of now."""
        return stand_ins(
            claim,
            self._question,
            room=self._room(),
            held=self._ledger.held.values(),
            pods=self._pods.pods,
            others=others,
        )

    async def of_size(self, size: int) -> Pending:
        """Who waits, once somebody among them wants ``size`` ids, with a decision or without."""
        deadline, refreshed = time.monotonic() + self._within, False
        while not self._wants(size):
            left = deadline - time.monotonic()
            if left <= 0:
                if refreshed or not self._refresh():
                    break
                deadline, refreshed = time.monotonic() + self._within, True
                continue
            await self._pods.changes.changed(self._pods.changes.version, timeout=left)
        return self.known()

    def _wants(self, size: int) -> bool:
        known = self.known()
        return any(len(claim.devices) == size for claim in known.next) or any(
            stranger.container.amount(self._question.resource) == size for stranger in known.unannotated
        )

    def identified(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, as of now."""
        return identify(ids, self.known(), self._ledger.held, self._question)

    def _starting(self, again: Repeated) -> bool:
        pod = self._pods.get(again.held.uid)
        return pod is not None and pod.phase == "Pending"

    async def identify(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, where a decision that is still on its way has a moment to arrive."""
        deadline, refreshed = time.monotonic() + self._within, False
        while True:
            seen = self._pods.changes.version
            identity = identify(ids, self.known(), self._ledger.held, self._question)
            left = deadline - time.monotonic()
            if isinstance(identity, Found) or (isinstance(identity, Repeated) and self._starting(identity)):
                return identity
            # Ids of a pod that starts no more are a later pod's, which the watch has not told of yet.
            late = RefusalReason.NO_PENDING_POD if isinstance(identity, Repeated) else None
            reason = identity.reason if isinstance(identity, Unknown) else late
            if reason is RefusalReason.AMBIGUOUS:
                return identity
            if left <= 0:
                if refreshed or reason is not RefusalReason.NO_PENDING_POD or not self._refresh():
                    return identity
                deadline, refreshed = time.monotonic() + self._within, True
                continue
            await self._pods.changes.changed(seen, timeout=left)
