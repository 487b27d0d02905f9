"""Answers pods that ask to be resized while they run: with room for it, or with the reason why there is none.

A pod that was refused is asked about again, as long as it asks. ``resized`` decides, by what others have and by the
quota.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from hami_plugin.errors import ClusterError, WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import ClusterApi
from hami_plugin.model.views import PodPatch, PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import (
    RESIZE,
    RESIZE_GRANTED,
    RESIZE_REFUSED,
    Amounts,
    Question,
    decided_shares,
    larger,
    parse_resize,
    with_grants,
)
from hami_plugin.scheduler.engine.devices import NodeInfo, Quota
from hami_plugin.scheduler.engine.node_info import PodInfo, pod_info, subtract_held
from hami_plugin.scheduler.engine.quotas import PREFIX, used
from hami_plugin.scheduler.extender.cache import SchedulerCache
from hami_plugin.sdk import Family

log = logger(__name__)

REASON = "ResizeRefused"


class Resizes:
    """``turn`` is held while anything is decided. ``every`` is after how many seconds a refused pod is tried again."""

    def __init__(
        self,
        cluster: ClusterApi,
        cache: SchedulerCache,
        events: EventRecorder,
        turn: asyncio.Lock,
        *,
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._events = events
        self._turn = turn
        self._every = every
        self._clock = clock
        self._tried: dict[str, tuple[str, float]] = {}

    async def run(self) -> NoReturn:
        await self._cache.synced()
        pods = self._cache.pods
        while True:
            seen = pods.shown.version
            self._tried = {uid: tried for uid, tried in self._tried.items() if uid in pods.resizing}
            for uid in list(pods.resizing):
                if self._due(uid):
                    await self._answer(uid)
            await pods.shown.changed(seen, timeout=self._every)

    def _due(self, uid: str) -> bool:
        known = self._cache.pods.index.entries.get(uid)
        text = known.pod.annotations.get(RESIZE, "") if known else ""
        if not known or not text or known.pod.annotations.get(RESIZE_GRANTED) == text:
            return False
        last, when = self._tried.get(uid, ("", 0.0))
        return text != last or self._clock() - when >= self._every

    async def _answer(self, uid: str) -> None:
        """Between the last look at the node and what counts from now on, nothing is awaited."""
        pods = self._cache.pods
        async with self._turn, pods.binding.turn(uid):
            known = pods.index.entries.get(uid)
            if known is None:
                return
            pod, text = known.pod, known.pod.annotations.get(RESIZE, "")
            self._tried[uid] = (text, self._clock())
            try:
                changes = {**self._decided(pod), RESIZE_GRANTED: text}
            except WireError as error:
                await self._refuse(pod, str(error))
                return
            pods.index.see(replace(pod, annotations={**pod.annotations, **changes}), self._cache.families)
        if not await self._write(pod, changes):
            pods.index.see(pod, self._cache.families)

    def _decided(self, pod: PodView) -> Mapping[str, str]:
        cache = self._cache
        node_info = cache.nodes.node_infos.get(pod.node)
        if node_info is None:
            raise WireError(f"node {pod.node} offers nothing now", hint="its daemon may be away")
        others = cache.pods.index.on(pod.node, without=pod.uid)
        quota = cache.quotas.quota(pod.namespace, cache.pods.index, without=pod.uid)
        wanted = parse_resize(pod.annotations[RESIZE])
        return resized(pod, wanted, cache.families, node_info=node_info, others=others, quota=quota)

    async def _refuse(self, pod: PodView, why: str) -> None:
        if pod.annotations.get(RESIZE_REFUSED) == why:
            return
        self._events.pod(pod, REASON, why, warning=True)
        await self._write(pod, {RESIZE_REFUSED: why})

    async def _write(self, pod: PodView, changes: Mapping[str, str]) -> bool:
        """Whether the API server has it. If not, the pod is answered again: a newer version of it is on its way."""
        try:
            self._cache.pods.answered(await self._cluster.patch_pod(pod, PodPatch(annotations=changes)))
        except ClusterError as error:
            log.info("answer to a resize not written", pod=pod.key, problem=error.message)
            self._tried.pop(pod.uid, None)
            return False
        return True


def resized(
    pod: PodView,
    wanted: Amounts,
    families: Sequence[Family],
    *,
    node_info: NodeInfo,
    others: Iterable[PodInfo],
    quota: Quota,
) -> Mapping[str, str]:
    """The pod's decision with the larger of what it has and what is ``wanted``. ``WireError`` says why it may not.

    ``others`` are the node's other pods, ``quota`` is the namespace's without this pod.
    """
    for family in families:
        question = _question(family)
        if question.allocated not in pod.annotations:
            continue
        having = {claim.container.name: claim for claim in decided_shares(pod, question) if not claim.container.alone}
        if not wanted.container and len(having) > 1:
            raise WireError(f"several containers have devices: {', '.join(sorted(having))}", hint="say which")
        claim = having.get(wanted.container) if wanted.container else next(iter(having.values()), None)
        if claim is None:
            continue
        grants = [larger(grant, wanted.of(grant)) for grant in claim.grants]
        changes = {question.allocated: with_grants(pod, question, claim.container.name, grants)}
        after = pod_info(replace(pod, annotations={**pod.annotations, **changes}), families)
        if after is None:
            raise WireError("no scheduler has placed it")
        left = subtract_held(node_info, families, [*(one.held for one in others), after.held])
        _require_devices(family, left, grants)
        _require_quota(families, after, quota)
        return changes
    which = f"container {wanted.container}" if wanted.container else "no container of it"
    raise WireError(f"{which} has devices that a scheduler has decided", hint="name one that has some")


def _question(family: Family) -> Question:
    names = family.resources
    return Question(
        resource=names.count,
        to_allocate=family.rules.annotations.to_allocate,
        allocated=family.rules.annotations.allocated,
        also=tuple(units.resource for units in names.units),
    )


def _require_devices(family: Family, node_info: NodeInfo, grants: Sequence[Grant]) -> None:
    """``node_info`` is the node less what everybody would have."""
    pool = node_info.pools.get(family.resources.device_type)
    states = {state.uuid: state for state in pool.states} if pool else {}
    for grant in grants:
        state = states.get(grant.uuid)
        if state is None:
            raise WireError(f"its node does not offer {grant.uuid} now", hint="ask again when it does")
        if not state.info.health:
            raise WireError(f"{grant.uuid} is not healthy", hint="ask again when it is")
        for what, unit, taken, total in (
            ("memory", "MiB", state.memory, state.info.devmem),
            ("cores", "%", state.cores, state.info.devcore),
        ):
            if taken > total > 0:
                raise WireError(
                    f"{grant.uuid} has {total} {unit} of {what}, and {taken} would be given", hint="ask for less"
                )


def _require_quota(families: Sequence[Family], after: PodInfo, quota: Quota) -> None:
    factors = {family.resources.memory: family.resources.memory_factor for family in families}
    for name, amount in used(families, [after.held]).items():
        factor = factors.get(name, 1)
        if not quota.allows(name, amount, factor):
            limit = quota.limits[name] * max(1, factor)
            raise WireError(
                f"{PREFIX}{name}: the pod would have {amount}, and {quota.used.get(name, 0)} of {limit} are used",
                hint="ask for less, or raise the quota",
            )
