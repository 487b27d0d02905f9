"""After a restart: which shares in the journal are real, which were never delivered, and which have ended."""

from __future__ import annotations

import asyncio

from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import PodResources
from hami_plugin.node.settlement import Settlement
from hami_plugin.policy.identity import Held

log = logger(__name__)


class Recovery:
    """Compares the journal with the pods and with the kubelet's account until nothing is open.

    A share counts as delivered when the kubelet says that its pod holds the ids. One that is not delivered stays
    reserved while its pod lives: either the kubelet repeats the call, or it fails the pod, and the pod's end frees it.
    The account leaves plain init containers out: theirs count as delivered when the pod has outlived some rounds.
    """

    INIT_ROUNDS = 3

    def __init__(
        self,
        *,
        ledger: Ledger,
        pods: PodTable,
        settlement: Settlement,
        resources: PodResources,
        period: float = 5.0,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._settlement = settlement
        self._resources = resources
        self._period = period

    async def run(self) -> None:
        """Wait for the first list of pods, then reconcile until all shares of a former life are settled or gone."""
        inherited = set(self._ledger.held)
        while not self._pods.changes.value:
            await self._pods.changes.changed(self._pods.changes.version)
        rounds = 0
        while True:
            self._drop_ended()
            opened = [h for key, h in self._ledger.held.items() if key in inherited and not h.settled]
            if not opened:
                return
            for resource in sorted({held.resource for held in opened}):
                await self._settle_delivered(resource, [held for held in opened if held.resource == resource])
            rounds += 1
            if rounds > self.INIT_ROUNDS:
                for held in opened:
                    if held.init:
                        self._settlement.note(held.uid)
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
            holders = await self._resources.holders(resource)
        except HamiError as error:
            log.warning("the kubelet's account is not available", resource=resource, problem=error.message)
            return
        for held in opened:
            owners = {(holder.namespace, holder.pod) for holder in holders if holder.ids & held.ids}
            if (held.namespace, held.pod) in owners:
                self._settlement.note(held.uid)
