"""The scheduler's answers: which node a pod goes to, binding it there, and whether it is admitted at all.

Several replicas may run beside several kube-schedulers, of which one leads. What one of them decided stands in the
pod's annotations before anybody acts on it, and the others read it there. Two that decide at the same moment do not see
each other, so each kube-scheduler asks the replica beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from hami_plugin.aio import Backoff, Watched, cancelled
from hami_plugin.errors import HamiError, WireError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.scheduler.engine.survey import of_any_age
from hami_plugin.scheduler.extender.bind import PACE, Binder, NodeLocks, UnsureError
from hami_plugin.scheduler.extender.cache import NodeCache, PodCache, QuotaCache
from hami_plugin.scheduler.extender.filter import ClusterState, Filter, Preferences
from hami_plugin.scheduler.extender.payloads import mapping, name, offer
from hami_plugin.scheduler.extender.ports import Cluster
from hami_plugin.scheduler.extender.upkeep import Upkeep
from hami_plugin.scheduler.webhook.admission import Scheduling, crowded
from hami_plugin.scheduler.webhook.review import Reviewer
from hami_plugin.sdk import Family

Json = Mapping[str, Any]

log = logger(__name__)

BOUND, UNBOUND = "BindingSucceed", "BindingFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the scheduler behaves. Times in seconds.

    ``lock_patience`` is how long a pod waits in line for its node: less than kube-scheduler waits for the extender.
    ``watch_patience`` is how long a bind waits for the watch to show who else is on the node.
    ``refuse_impossible``: admission refuses what no known node can ever give. ``unready_patience`` is how long a filter
    request waits for the first lists.
    """

    scheduling: Scheduling = field(default_factory=Scheduling)
    preferences: Preferences = field(default_factory=Preferences)
    refuse_impossible: bool = True
    lock_patience: float = 25.0
    watch_patience: float = 5.0
    unready_patience: float = 5.0
    upkeep_every: float = 15.0
    stop_patience: float = 5.0
    pace: Backoff = PACE


def local_time() -> datetime:
    return datetime.now().astimezone()


class SchedulerService:
    """Answers kube-scheduler and the API server. ``run`` keeps what it knows of the cluster up to date."""

    def __init__(
        self,
        cluster: Cluster,
        families: Sequence[Family],
        options: Options | None = None,
        *,
        now: Callable[[], datetime] = local_time,
    ) -> None:
        options = options or Options()
        served = tuple(map(of_any_age, families))
        self._options = options
        self._cluster = cluster
        self._nodes, self._pods, self._limits = NodeCache(served, now), PodCache(served), QuotaCache(served)
        self._events = EventRecorder(cluster)
        known = ClusterState(
            families=served,
            nodes=self._nodes,
            pods=self._pods,
            limits=self._limits,
            preferences=options.preferences,
        )
        self._standing = self._pods.standing
        self._chooser = Filter(cluster, known, self._events, now, standing=self._standing, pace=options.pace)
        self._reviewer = Reviewer(known, options.scheduling, refuse_impossible=options.refuse_impossible)
        locks = NodeLocks(cluster, self._nodes, now, patience=options.lock_patience, pace=options.pace)
        self._binder = Binder(
            cluster,
            served,
            locks,
            self._nodes,
            now,
            pods=self._pods,
            order=options.preferences.devices,
            pace=options.pace,
            patience=options.watch_patience,
        )
        self._upkeep = Upkeep(cluster, self._nodes, self._pods, every=options.upkeep_every)
        self._unfinished: set[asyncio.Task[Json]] = set()
        self._binds: dict[tuple[str, str], asyncio.Task[Json]] = {}

    async def filter(self, request: Json) -> Json:
        """ExtenderArgs in, ExtenderFilterResult out. WireError when the request cannot be read."""
        if why := crowded(mapping(request.get("Pod"))):
            return {"Error": why}
        asked = offer(request)
        if asked.nodes is None and not (asked.pod.get("metadata") or {}).get("uid"):
            raise WireError("filter request: the Pod has no UID", hint="send the pod as the API server has it")
        await self._listed()
        if problems := self.problems():
            return {"Error": f"the scheduler does not know the cluster yet: {'; '.join(problems)}"}
        return await asyncio.shield(self._begun(self._chooser.filter(asked)))

    async def bind(self, request: Json) -> Json:
        """ExtenderBindingArgs in, ExtenderBindingResult out. WireError when the request cannot be read.

        A kube-scheduler that gave up waiting and asks once more waits for the bind that runs.
        """
        names = [name(request, key, "bind request") for key in ("PodNamespace", "PodName", "PodUID", "Node")]
        if not all(names):
            raise WireError(
                "bind request: PodName, PodNamespace, PodUID or Node is missing",
                hint="send kube-scheduler's ExtenderBindingArgs",
            )
        bind = (names[2], names[3])
        if bind not in self._binds:
            self._binds[bind] = self._begun(self._bound(*names))
            self._binds[bind].add_done_callback(lambda _bound: self._binds.pop(bind))
        return await asyncio.shield(self._binds[bind])

    async def review(self, request: Json) -> Json:
        """An AdmissionReview with its request in, one with its response out. WireError when it cannot be read."""
        return await self._reviewer.review(request)

    def problems(self) -> tuple[str, ...]:
        """Why no pod can be decided on at present; empty when one can."""
        missing = [name for name, listed in self._lists().items() if not listed.value]
        if not missing:
            return ()
        reachable = self._cluster.reachable.value
        return (f"not listed yet: {', '.join(missing)}", *([reachable] if reachable else ()))

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the cluster until ``stop`` is set; then what was begun is finished, within a few seconds."""
        loops = {
            "nodes": self._cluster.follow_nodes(self._nodes.feed),
            "pods": self._cluster.follow_pods(self._pods.feed),
            "quotas": self._cluster.follow_quotas(self._limits.feed),
            "upkeep": self._upkeep.run(),
            "events": self._events.run(),
        }
        tasks: set[asyncio.Task[Any]] = {asyncio.create_task(loop, name=name) for name, loop in loops.items()}
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                _broken(task)
            if self._unfinished:
                await asyncio.wait(self._unfinished, timeout=self._options.stop_patience)
        finally:
            for task in (stopped, *tasks):
                await cancelled(task)

    def _lists(self) -> Mapping[str, Watched[bool]]:
        return {"nodes": self._nodes.listed, "pods": self._pods.listed, "resourcequotas": self._limits.listed}

    async def _listed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.unready_patience):
                for listed in self._lists().values():
                    await listed.changed(0)

    async def _bound(self, namespace: str, name: str, uid: str, node: str) -> Json:
        try:
            async with self._standing.turn(uid):  # a decision that is being written is waited for
                pod = await self._pod(namespace, name, uid, node)
                self._standing.begin(pod, node)
            await self._binder.bind(pod, node)
        except HamiError as error:
            settle = self._standing.doubt if isinstance(error, UnsureError) else self._standing.end
            settle(uid)
            subject = PodView(uid=uid, namespace=namespace, name=name)
            self._events.pod(subject, UNBOUND, str(error), warning=True)
            return {"Error": str(error)}
        self._events.pod(pod, BOUND, f"bound to node {node}", warning=False)
        return {"Error": ""}

    async def _pod(self, namespace: str, name: str, uid: str, node: str) -> PodView:
        """The pod with the decision for the node on it: as we know it, or as it is at the API server. The decision may
        be another scheduler's, which our watch has not shown yet.
        """
        known = self._pods.ledger.entries.get(uid)
        if known and known.node == node:
            return known.pod
        found = await self._cluster.get_pod(namespace, name)
        if found is None or found.uid != uid:
            raise HamiError(f"pod {namespace}/{name} is gone", hint="nothing to do")
        return found

    def _begun(self, answer: Coroutine[Any, Any, Json]) -> asyncio.Task[Json]:
        """The answer. What was begun is finished, also when nobody waits for it any more."""
        task = asyncio.create_task(_told(answer))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task


def _broken(task: asyncio.Task[Any]) -> NoReturn:
    """Raise what ended one of the loops, none of which ends by itself; the log names it."""
    error = task.exception() or RuntimeError("it ended without an error")
    log.error("a loop of the scheduler broke, and the process ends", loop=task.get_name(), problem=repr(error))
    raise error


async def _told(answer: Coroutine[Any, Any, Json]) -> Json:
    try:
        return await answer
    except HamiError as error:
        return {"Error": str(error)}
