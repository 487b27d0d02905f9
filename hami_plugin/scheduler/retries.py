"""Calls to the API server that are worth another try, and writes to a pod that another scheduler may write to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hami_plugin.aio import Backoff
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME
from hami_plugin.scheduler.engine.assignment import Changes
from hami_plugin.scheduler.ports import Cluster

T = TypeVar("T")

PACE = Backoff(first=0.05, cap=1.0)
TRIES = 4

_DECISION = (ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME)


class OvertakenError(ClusterError):
    """Another scheduler has written its decision to the pod, or bound it. ``found`` is the pod as it is now."""

    def __init__(self, found: PodView) -> None:
        node, phase = found.node or found.annotations.get(ASSIGNED_NODE, ""), found.annotations.get(BIND_PHASE, "")
        step = "has bound it to" if found.node else f"has decided for it (phase {phase or 'none yet'}):"
        super().__init__(
            f"pod {found.key}: another scheduler {step} node {node or '(none)'}",
            status=409,
            hint="nothing of that is changed; the pod is scheduled again if it waits",
        )
        self.found = found


async def repeated(call: Callable[[], Awaitable[T]], *, pace: Backoff = PACE) -> T:
    """Call until it succeeds, a few times at most. ``ClusterError`` of the last time, or of one that no time mends."""
    for _try, delay in zip(range(TRIES - 1), pace.delays(), strict=False):
        try:
            return await call()
        except ClusterError as error:
            if not error.temporary:
                raise
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    return await call()


async def write(cluster: Cluster, pod: PodView, changes: Changes, *, pace: Backoff = PACE) -> PodView:
    """Write a decision, or a step of it, to the pod as it was when that was decided. ``ClusterError`` if it fails.

    The API server takes it in this version of the pod only. A newer one is read: where the decision is the same, as
    after a change of the pod's conditions, that version is written to; else it is ``OvertakenError``.
    """
    sure = True
    for last, delay in zip((*(False,) * (TRIES - 1), True), pace.delays(), strict=False):
        try:
            return await cluster.patch_pod(pod, changes)
        except ClusterError as error:
            if last or not error.temporary:
                raise
            sure = sure and error.conflict
            if error.conflict:
                pod = await present(cluster, pod, changes, sure=sure, pace=pace)
                if not sure and _has(pod, changes):
                    return pod
            await asyncio.sleep(max(delay, min(pace.cap, error.retry_after or 0.0)))
    raise AssertionError("the last try answers or raises")


async def present(
    cluster: Cluster, pod: PodView, changes: Changes | None = None, *, sure: bool = True, pace: Backoff = PACE
) -> PodView:
    """The pod's present version. ``OvertakenError`` when somebody else has decided on it since ``pod`` was read.

    When it is not ``sure`` that our ``changes`` were not taken, a pod that has them is no other's.
    """
    found = await repeated(lambda: cluster.get_pod(pod.namespace, pod.name), pace=pace)
    if found is None or found.uid != pod.uid:
        raise ClusterError(f"pod {pod.key} is gone", status=404, hint="nothing to do")
    keys = (*_DECISION, *(changes.annotations if changes else ()))
    same = found.node == pod.node and all(found.annotations.get(key) == pod.annotations.get(key) for key in keys)
    ours = not sure and changes is not None and found.node == pod.node and _has(found, changes)
    if not same and not ours:
        raise OvertakenError(found)
    return found


def _has(pod: PodView, changes: Changes) -> bool:
    return all(pod.annotations.get(key) == text for key, text in changes.annotations.items())
