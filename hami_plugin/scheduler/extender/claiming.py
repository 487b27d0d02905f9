"""Pods whose limits the webhook rewrites to ResourceClaims: what they count for, and the templates of their claims.

A template is made before its first pod, goes with its DeviceClass, and is removed when nobody has asked for it for an
hour: once a pod's claim is made it is not needed any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from hami_plugin.dra.conversion import CLAIMED, MANAGED, USED, ClaimedAmounts, ClaimTemplate, read_claimed
from hami_plugin.dra.slices import API_VERSION
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.model.ports import ClusterApi
from hami_plugin.model.views import Json, PodView
from hami_plugin.process.log import logger

log = logger(__name__)

NOTED, UNUSED = timedelta(minutes=10), timedelta(minutes=60)
"""How old the note of a template's last use may become, and after what time without use it goes."""
SWEEP_S = 600.0
EXPECTED_S = 60.0
"""How long a pod that was admitted counts before the watch shows it."""
MOST = 5000
_TIME = "%Y-%m-%dT%H:%M:%SZ"

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    namespace: str
    claimed: ClaimedAmounts
    until: float


class ClaimedPods:
    """The living pods with claims in place of their limits, and those that were admitted a moment ago."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, ClaimedAmounts]] = {}
        self._expected: dict[str, _Expected] = {}

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(self._pods)

    def see(self, pod: PodView) -> None:
        """A version of a pod from the watch."""
        text = pod.annotations.get(CLAIMED, "")
        claimed = read_claimed(text) if text and not pod.terminal else None
        if claimed is None:
            self._pods.pop(pod.uid, None)
            return
        self._pods[pod.uid] = (pod.namespace, claimed)
        self._expected.pop(claimed.token, None)

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def expect(self, namespace: str, claimed: ClaimedAmounts, now: float) -> None:
        """It was admitted: it counts until the watch shows it, or for a while where nobody creates it."""
        self._forget(now)
        self._expected[claimed.token] = _Expected(namespace=namespace, claimed=claimed, until=now + EXPECTED_S)

    def forget(self, token: str) -> None:
        """It was not admitted after all."""
        self._expected.pop(token, None)

    def used(self, namespace: str, now: float) -> Mapping[str, int]:
        """What a namespace's pods have by claims: devices, MiB and percent, by resource."""
        self._forget(now)
        total: Counter[str] = Counter()
        for there, claimed in self._pods.values():
            if there == namespace:
                total.update(claimed.amounts)
        for one in self._expected.values():
            if one.namespace == namespace:
                total.update(one.claimed.amounts)
        return total

    @property
    def templates(self) -> frozenset[tuple[str, str]]:
        """The templates that living pods name, with their namespaces."""
        return frozenset((namespace, name) for namespace, claimed in self._pods.values() for name in claimed.templates)

    def _forget(self, now: float) -> None:
        while self._expected:
            token, oldest = next(iter(self._expected.items()))
            if oldest.until > now and len(self._expected) <= MOST:
                return
            del self._expected[token]


class ClaimTemplates:
    """The templates at the API server. ``run`` removes those that nobody uses."""

    def __init__(self, cluster: ClusterApi, pods: ClaimedPods, now: Clock, *, sweep_s: float = SWEEP_S) -> None:
        self._cluster = cluster
        self._pods = pods
        self._now = now
        self._sweep_s = sweep_s

    async def ensure(self, namespace: str, templates: Sequence[ClaimTemplate]) -> str:
        """Have them there before a pod names them. Why that cannot be; empty when they are.

        ``ClusterError`` where the API server may answer otherwise a moment later.
        """
        for template in templates:
            try:
                if why := await self._ensure(namespace, template):
                    return why
            except ClusterError as error:
                if error.temporary and error.status != FORBIDDEN:
                    raise
                return f"ResourceClaimTemplate {namespace}/{template.name} cannot be made: {error}"
        return ""

    async def _ensure(self, namespace: str, template: ClaimTemplate) -> str:
        there = await self._cluster.get_claim_template(namespace, template.name)
        if there is None:
            owner = await self._cluster.get_device_class(template.device_class)
            if owner is None:
                return (
                    f"there is no DeviceClass {template.device_class}: no node gives these devices by claims; set "
                    "frontEnd: dra in the chart, or leave the vendor out of scheduler.claimVendors"
                )
            try:
                await self._cluster.create_claim_template(
                    template.document(namespace, _reference(owner), self._now().astimezone(UTC).strftime(_TIME))
                )
            except ClusterError as error:
                if not error.conflict:
                    raise
            else:
                log.info("template made", template=f"{namespace}/{template.name}")
                return ""
            there = await self._cluster.get_claim_template(namespace, template.name)
            if there is None:
                raise HamiError(f"ResourceClaimTemplate {namespace}/{template.name} comes and goes", hint="try again")
        if not template.is_in(there):
            return (
                f"ResourceClaimTemplate {namespace}/{template.name} is not the one that hami-plugin makes; delete it, "
                "and create the pod again"
            )
        if _age(there, self._now()) > NOTED:
            used = {USED: self._now().astimezone(UTC).strftime(_TIME)}
            await self._cluster.patch_claim_template(namespace, template.name, used)
        return ""

    async def run(self) -> NoReturn:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                await self.sweep()
            except HamiError as error:
                log.info("templates not looked through", problem=str(error))

    async def sweep(self) -> None:
        """Remove what no pod has asked for within the hour. One that is asked for meanwhile has another version."""
        named = self._pods.templates
        for one in await self._cluster.list_claim_templates("=".join(MANAGED), MOST):
            meta = one.get("metadata") or {}
            namespace, name = str(meta.get("namespace", "")), str(meta.get("name", ""))
            ours = (meta.get("labels") or {}).get(MANAGED[0]) == MANAGED[1]
            if not ours or (namespace, name) in named or _age(one, self._now()) <= UNUSED:
                continue
            try:
                await self._cluster.delete_claim_template(
                    namespace, name, resource_version=str(meta.get("resourceVersion", ""))
                )
            except ClusterError as error:
                if not (error.conflict or error.not_found):
                    raise
            else:
                log.info("template removed", template=f"{namespace}/{name}", why="no pod has asked for it for an hour")


FORBIDDEN = 403


def _reference(owner: Json) -> Json:
    meta = owner.get("metadata") or {}
    return {"apiVersion": API_VERSION, "kind": "DeviceClass", "name": meta.get("name"), "uid": meta.get("uid")}


def _age(document: Json, now: datetime) -> timedelta:
    """Since its last use, as noted; since it was made, where nothing is noted."""
    meta = document.get("metadata") or {}
    for text in ((meta.get("annotations") or {}).get(USED), meta.get("creationTimestamp")):
        try:
            return now - datetime.strptime(str(text), _TIME).replace(tzinfo=UTC)
        except ValueError:
            continue
    return timedelta(0)
