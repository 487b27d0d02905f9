"""Keeps a device from being given away twice, whatever pods' annotations say: what was handed out here counts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hami_plugin.aio import Watched
from hami_plugin.errors import RefusalReason
from hami_plugin.log import logger
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import Observer
from hami_plugin.model.views import PodView
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.measure import Measure
from hami_plugin.node.pods import PodTable
from hami_plugin.node.refusals import Refusals
from hami_plugin.policy.identity import Found, Held, Identity
from hami_plugin.policy.overcommit import Account, Excess, let_go, overcommitted, wants_none
from hami_plugin.protocol.decisions import Claim, Question
from hami_plugin.vendor import Family

log = logger(__name__)

Shares = Mapping[str, Grant]
"""By container."""

HINT = "no scheduler decides this beside what is held: find out who wrote the pod's annotations, or end a holder"


class Overcommitment:
    """Of one family. ``account`` says what a pod counts for; None: nothing is too much. ``within`` is in seconds.

    ``outdated`` says why what is known of pods may be old; empty while it is not.
    """

    def __init__(
        self,
        family: Family,
        question: Question,
        *,
        snapshot: Watched[Snapshot],
        pods: PodTable,
        ledger: Ledger,
        refusals: Refusals,
        observer: Observer,
        account: Account | None,
        within: float,
        outdated: Callable[[], str],
    ) -> None:
        self._family = family
        self._question = question
        self._snapshot = snapshot
        self._pods = pods
        self._ledger = ledger
        self._refusals = refusals
        self._observer = observer
        self._account = account
        self._within = within
        self._outdated = outdated

    async def awaited(self, ids: Sequence[str], identify: Callable[[], Awaitable[Identity]]) -> Identity:
        """Who asks, once what it was decided has room. The end of others may come a moment after the decision."""
        deadline = time.monotonic() + self._within
        while True:
            seen = self._pods.changes.version
            identity = await identify()
            left = deadline - time.monotonic()
            hopeless = left <= 0 or self._outdated()
            if hopeless or not isinstance(identity, Found) or not self._excess(ids, identity.claim):
                return identity
            await self._pods.changes.changed(seen, timeout=left)

    def require(self, ids: Sequence[str], claim: Claim, *, again: bool = False) -> None:
        """``RefusedError`` where a device would give away more than it has, as far as the API server can be asked.

        Asked ``again``, it does not say once more that this is unknown.
        """
        found = self._excess(ids, claim)
        if not found:
            return
        measure, excess = found
        words = excess.told(measure.device.uuid, measure.unit(excess.what), claim.pod.key)
        if why := self._outdated():
            if again:
                return
            log.warning("handed out beyond what is left", why=words, unknown=f"who has ended: {why}")
            self._observer.unchecked(self._question.resource)
            return
        raise self._refusals.failed(RefusalReason.OVERCOMMITTED, words, claim.pod, hint=HINT)

    def _excess(self, ids: Sequence[str], claim: Claim) -> tuple[Measure, Excess] | None:
        if self._account is None:
            return None
        for uuid in {grant.uuid: None for grant in claim.grants}:
            device = self._snapshot.value.device(uuid)
            measure = Measure.of(self._family, device, masks=self._account.masks) if device else None
            if measure is None:
                continue
            holders = self._holders(claim, uuid)
            if measure.fits([claim.grants, *(one.grants for one in holders)]):
                continue
            own, others = self._tenants(ids, claim, measure, holders)
            asks = self._account.read(claim.pod, own, self._question, True)
            beside = [self._account.read(pod, has, self._question, False) for pod, has in others]
            if found := overcommitted(measure.total, asks, beside):
                return measure, found
        return None

    def _holders(self, claim: Claim, uuid: str) -> Sequence[Held]:
        """Who has a share of the device, each container once, as far as schedulers can know of them."""
        own, names = (claim.pod.uid, claim.container.name), (self._question.resource, *self._question.also)
        found = {(one.uid, one.container): one for one in self._ledger.on(uuid) if one.resource in names}
        return [one for whose, one in found.items() if whose != own and not one.undecided]

    def _tenants(
        self, ids: Sequence[str], claim: Claim, measure: Measure, holders: Sequence[Held]
    ) -> tuple[Shares, list[tuple[PodView, Shares]]]:
        """What the pod would have of the device, and what each of the others has that live."""
        shares: defaultdict[str, dict[str, Grant]] = defaultdict(dict)
        for one in holders:
            shares[one.uid][one.container] = self._share(measure, self._pods.get(one.uid), one.container, one.grants)
        own = shares.pop(claim.pod.uid, {})
        own[claim.container.name] = self._share(measure, claim.pod, claim.container.name, claim.grants)
        gone = let_go(ids, self._ledger.held.values(), self._question.resource)
        others = [(pod, has) for uid, has in shares.items() if uid not in gone and (pod := self._pods.get(uid))]
        return own, [(pod, has) for pod, has in others if not pod.terminal]

    def _share(self, measure: Measure, pod: PodView | None, container: str, grants: Sequence[Grant]) -> Grant:
        percent = self._question.memory_percent
        return measure.together(grants, limitless=pod is not None and wants_none(pod, container, percent))
