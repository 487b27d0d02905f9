"""The ResourceQuotas of all namespaces, as a watch tells of them: what each allows of our resources."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.aio import Watched
from hami_plugin.log import logger
from hami_plugin.model.views import Feed, QuotaView
from hami_plugin.scheduler.engine.ledger import Ledger
from hami_plugin.scheduler.engine.quotas import limits, used
from hami_plugin.scheduler.engine.states import Quota
from hami_plugin.vendor import Family

log = logger(__name__)


class Limits:
    """Every ResourceQuota, and what of it is left."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = tuple(families)
        self._known: dict[str, dict[str, QuotaView]] = {}
        self.listed = Watched(False)
        self.feed: Feed[QuotaView] = Feed(replace=self._replace, update=self._update, delete=self._delete)

    def quota(self, namespace: str, ledger: Ledger, *, without: str) -> Quota:
        """What a namespace may have of each resource, and what its pods have, without that of one pod."""
        allowed = limits((one.hard for one in self._known.get(namespace, {}).values()), self._families)
        if not allowed:
            return Quota()
        there = [one.held for one in ledger.of(namespace, without=without)]
        return Quota(limits=allowed, used=used(self._families, there))

    def _update(self, quota: QuotaView) -> None:
        try:
            limits([quota.hard], self._families)
        except ValueError as error:
            log.warning("a quota cannot be read", quota=f"{quota.namespace}/{quota.name}", problem=str(error))
            self._delete(quota)
            return
        self._known.setdefault(quota.namespace, {})[quota.name] = quota

    def _delete(self, quota: QuotaView) -> None:
        there = self._known.get(quota.namespace, {})
        there.pop(quota.name, None)
        if not there:
            self._known.pop(quota.namespace, None)

    def _replace(self, quotas: Sequence[QuotaView]) -> None:
        self._known.clear()
        for quota in quotas:
            self._update(quota)
        self.listed.set(True)
