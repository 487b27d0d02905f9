"""After a restart: which shares in the journal are real, which were never delivered, and which have ended."""

from __future__ import annotations

import asyncio

from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import Checkpoint
from hami_plugin.node.settlement import Settlement
from hami_plugin.policy.identity import Held

log = logger(__name__)


class Recovery:
    """Compares the journal with the pods and with the kubelet's checkpoint until nothing is open.

    A share counts as delivered when the kubelet keeps the answer that was made for it. One that is not delivered stays
    reserved while its pod lives: either the kubelet repeats the call, or it fails the pod, and the pod's end frees it.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        pods: PodTable,
        settlement: Settlement,
        checkpoint: Checkpoint,
        period: float = 5.0,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._settlement = settlement
        self._checkpoint = checkpoint
        self._period = period

    async def run(self) -> None:
        """Wait for the first list of pods, then reconcile until all shares of a former life are settled or gone."""
        inherited = set(self._ledger.held)
        while not self._pods.changes.value:
            await self._pods.changes.changed(self._pods.changes.version)
        while True:
            self._drop_ended()
            opened = [h for key, h in self._ledger.held.items() if key in inherited and not h.settled]
            if not opened:
                return
            for resource in sorted({held.resource for held in opened}):
                await self._settle_delivered(resource, [held for held in opened if held.resource == resource])
            await asyncio.sleep(self._period)

    def _drop_ended(self) -> None:
        """Shares of pods that are gone or have ended while nobody looked."""
        pods = {pod.uid: pod for pod in self._pods.pods}
        ended = [h.key for h in self._ledger.held.values() if h.uid not in pods or pods[h.uid].terminal]
        if ended:
            log.info("shares of ended pods dropped", shares=len(ended))
            self._ledger.drop(ended)

    async def _settle_delivered(self, resource: str, opened: list[Held]) -> None:
        try:
            kept = await self._checkpoint.kept(resource)
        except HamiError as error:
            log.warning("what the kubelet was answered is not known", resource=resource, problem=error.message)
            return
        answered = {(one.uid, one.container, one.ids) for one in kept if one.right}
        for held in opened:
            if (held.uid, held.container, held.ids) in answered:
                self._settlement.note(held.uid)
