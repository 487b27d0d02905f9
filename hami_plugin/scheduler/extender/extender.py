"""The extender: which node a pod goes to, binding it there, and whether it is admitted at all, with which defaults.

Several replicas may run beside several kube-schedulers, of which one leads. What one of them decided stands in the
pod's annotations before anybody acts on it, and the others read it there. Two that decide at the same moment do not see
each other, so each kube-scheduler asks the replica beside it.

``Decisions`` takes up a changed configuration: another extender is built beside the one that decides. Once it knows the
cluster, calls wait, the former one finishes what it has begun, and the new one decides as soon as it has seen all that
was decided. So no decision is made by a mixture of two configurations, and none is forgotten.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

from hami_plugin.config.changes import ConfigurationChange, ConfigurationSource, ReloadRefusal, Reloads, problems_of
from hami_plugin.config.load import Configuration
from hami_plugin.dra.conversion import ClaimVendor, ConvertedPod, convert, quota_excess
from hami_plugin.errors import ClusterError, HamiError, WireError
from hami_plugin.model.ports import ClusterApi
from hami_plugin.model.views import PodPatch, PodView, crowded, node_view, pod_view
from hami_plugin.node_status.events import EventRecorder, RecordedEvent
from hami_plugin.process.concurrency import Backoff, cancel, poll_condition, run_in_slices
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING
from hami_plugin.scheduler.engine.admission import Allowed, Scheduling, Views, review_pausing
from hami_plugin.scheduler.engine.capacity import why_impossible
from hami_plugin.scheduler.engine.devices import Denied
from hami_plugin.scheduler.engine.filter import (
    FilterResult,
    NoDemand,
    filter_nodes_pausing,
    node_info_for,
    simulate_pausing,
    warm_up_pausing,
)
from hami_plugin.scheduler.engine.fit import PodFit
from hami_plugin.scheduler.engine.node_info import UNASSIGNED, assignment, with_legacy_register
from hami_plugin.scheduler.extender.bind import PACE, Binder, NodeLocks, OvertakenError, UnsureError, retry, write
from hami_plugin.scheduler.extender.cache import PendingDecision, Preferences, Resync, SchedulerCache
from hami_plugin.scheduler.extender.claiming import ClaimTemplates
from hami_plugin.scheduler.extender.payloads import (
    BindingArgs,
    ExtenderArgs,
    Json,
    admission_response,
    binding_args,
    bound_pod_result,
    extender_args,
    filter_result,
    mapping,
    member,
    name,
    require_pod_shape,
)
from hami_plugin.scheduler.extender.resizes import Resizes
from hami_plugin.sdk import Family

log = logger(__name__)


class Reviewer:
    """Decides which pods are taken, and with which defaults. ``refuse_impossible``: not those that can never run.

    Pods that ask for devices of ``vendors`` get claims in place of their limits.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        scheduling: Scheduling,
        *,
        refuse_impossible: bool,
        vendors: Sequence[ClaimVendor],
        templates: ClaimTemplates,
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._refuse_impossible = refuse_impossible
        self._vendors = tuple(vendors)
        self._templates = templates

    async def review(self, asked: Json) -> Json:
        """Answer in the version that was asked in. WireError when there is no request in it.

        What is no pod that is being created is let through. Before the cluster is known only the pod itself is judged.
        """
        request = asked.get("request")
        if not isinstance(request, Mapping):
            raise WireError("admission review: no request", hint="send what the API server sends")
        response = admission_response(str(request.get("uid", "")), await self._decided(request))
        version = str(asked.get("apiVersion") or "admission.k8s.io/v1")
        return {"apiVersion": version, "kind": "AdmissionReview", "response": response}

    async def _decided(self, request: Json) -> Allowed | Denied:
        pod = request.get("object")
        kind = member(request, "kind", "admission review")
        if not isinstance(pod, Mapping) or kind.get("kind") != "Pod" or request.get("operation") != "CREATE":
            return Allowed()
        if not isinstance(pod.get("spec"), Mapping):
            raise WireError("admission review: a pod without a spec", hint="send what the API server sends")
        if not crowded(pod):
            require_pod_shape(pod, "admission review")
        metadata = {**member(pod, "metadata", "admission review")}
        metadata["namespace"] = metadata.get("namespace") or name(request, "namespace", "admission review") or "default"
        whole = {**pod, "metadata": metadata}  # a pod that is being created may not say its namespace yet
        cache = self._cache
        namespace, token = metadata["namespace"], secrets.token_hex(8)
        quota = cache.quota(namespace, without=str(metadata.get("uid", "")))
        rewrite = partial(self._rewrite, namespace, token)
        taken = False
        try:
            decided = await run_in_slices(
                review_pausing(whole, cache.families, self._scheduling, quota, self._impossible, rewrite=rewrite)
            )
            if (
                isinstance(decided, Allowed)
                and isinstance(decided.rewritten, ConvertedPod)
                and not request.get("dryRun")
            ):
                if why := await self._templates.ensure(namespace, decided.rewritten.templates):
                    return Denied(why=why)
                taken = True
            return decided
        finally:
            if not taken:
                cache.pods.claimed.forget(token)

    def _rewrite(self, namespace: str, token: str, stored: Json, pods: Views) -> ConvertedPod | Denied | None:
        """The pod with claims, if its namespace may have so much. It counts from now on, whoever asks next."""
        found = convert(stored, pods, self._vendors, token) if self._vendors else None
        if not isinstance(found, ConvertedPod):
            return found
        cache = self._cache
        used = cache.counted(namespace, [family for vendor in self._vendors for family in vendor.families])
        if why := quota_excess(found.claimed, self._vendors, cache.quotas.hard(namespace), used):
            return Denied(why=f"exceeding resource quota: {why}")
        cache.pods.claimed.expect(namespace, found.claimed, time.monotonic())
        return found

    def _impossible(self, pod: PodView) -> str:
        if not self._refuse_impossible:
            return ""
        return why_impossible(pod, self._cache.families, self._cache.nodes.largest)


T = TypeVar("T")


FILTERED, UNFILTERED = "FilteringSucceed", "FilteringFailed"
BOUND, UNBOUND = "BindingSucceed", "BindingFailed"
"""The reasons of Events, as HAMi has them."""

WRITES = 100
"""So many decisions may be on their way to the API server. The next pod waits for one of them."""
AHEAD, YIELD_S = 8, 0.03
"""While so many binds run, an answer to a filter waits for one of them, at most so many seconds."""
MAX_RETRIES = 16
"""How often a choice is made again because its node changed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the scheduler behaves. Times in seconds.

    ``lock_timeout`` is how long a pod waits in line for its node: less than kube-scheduler waits for the extender.
    ``watch_timeout`` is how long a bind waits for the watch to show who else is on the node. ``bind_within`` is how
    long a decision waits for its bind, which writes it along.
    ``sync_timeout`` is how long a filter request waits for the first lists. ``refuse_impossible``: admission refuses
    what no known node can ever give. ``claim_vendors`` are those whose limits admission rewrites to ResourceClaims.
    ``resizes``: pods that run may ask for other amounts, with ``resize_period`` from one refusal to the next look.
    """

    scheduling: Scheduling = field(default_factory=Scheduling)
    preferences: Preferences = field(default_factory=Preferences)
    refuse_impossible: bool = True
    claim_vendors: tuple[ClaimVendor, ...] = ()
    lock_timeout: float = 25.0
    watch_timeout: float = 5.0
    bind_within: float = 0.5
    sync_timeout: float = 5.0
    resizes: bool = False
    resize_period: float = 30.0
    resync_period: float = 15.0
    stop_timeout: float = 5.0
    pace: Backoff = PACE


def local_time() -> datetime:
    return datetime.now().astimezone()


class Extender:
    """Answers kube-scheduler and the API server. ``run`` keeps the cache of the cluster up to date.

    A request is a JSON object as it was sent. ``WireError`` when it cannot be read; what it asks for is answered, never
    raised. A caller that gives up cancels only its own wait: a decision that was begun is finished.
    """

    def __init__(
        self,
        cluster: ClusterApi,
        families: Sequence[Family],
        options: Options | None = None,
        *,
        now: Callable[[], datetime] = local_time,
    ) -> None:
        self._options = options = options or Options()
        self._cluster = cluster
        self._now = now
        served = tuple(map(with_legacy_register, families))
        self.cache = cache = SchedulerCache(served, now, options.preferences)
        self._events = EventRecorder(cluster)
        self._templates = ClaimTemplates(cluster, cache.pods.claimed, now)
        self._reviewer = Reviewer(
            cache,
            options.scheduling,
            refuse_impossible=options.refuse_impossible,
            vendors=options.claim_vendors,
            templates=self._templates,
        )
        locks = NodeLocks(cluster, cache.nodes, now, timeout=options.lock_timeout, pace=options.pace)
        self._binder = Binder(cluster, cache, locks, now, pace=options.pace, timeout=options.watch_timeout)
        self._resync = Resync(cluster, cache.nodes, cache.pods, every=options.resync_period)
        self._cycle = asyncio.Lock()
        self._resizes = Resizes(cluster, cache, self._events, self._cycle, every=options.resize_period)
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._writes = asyncio.Semaphore(WRITES)
        self._binds: dict[tuple[str, str], asyncio.Task[Json]] = {}

    async def filter(self, request: Json) -> Json:
        """ExtenderArgs in, ExtenderFilterResult out."""
        if why := crowded(mapping(request.get("Pod"))):
            return {"Error": why}
        args = extender_args(request)
        if args.nodes is None and not (args.pod.get("metadata") or {}).get("uid"):
            raise WireError("filter request: the Pod has no UID", hint="send the pod as the API server has it")
        if problems := await self._synced():
            return {"Error": f"the scheduler does not know the cluster yet: {'; '.join(problems)}"}
        return await asyncio.shield(self._started(self._filter(args)))

    async def _filter(self, args: ExtenderArgs) -> Json:
        """Choose one node, and assume the decision. It is written to the pod while kube-scheduler goes on: by the bind,
        or before where that does not come soon. Until then it keeps the pod's turn.

        Nodes that are given as objects need not exist: that is a question only, and nothing is written.
        """
        pod = pod_view(args.pod)
        if args.nodes is not None:
            simulated = simulate_pausing(self.cache.snapshot(pod), pod, map(node_view, args.nodes))
            return filter_result(args, await run_in_slices(simulated))
        async with AsyncExitStack() as held:
            await held.enter_async_context(self.cache.pods.binding.turn(pod.uid))
            await held.enter_async_context(self._writes)
            if node := await self._bound_node(pod, args.names):
                return bound_pod_result(args, node)
            async with self._cycle:  # one decision at a time: nothing runs between the choice and its assumption
                result = await self._choose(pod, args.names)
                newest = self.cache.pods.newest(pod)
                patch = self._assume(pod, result)
            if isinstance(result, FilterResult) and result.placed is None:
                self._events.pod(pod, UNFILTERED, why_pending(result, args.names), warning=True)
            if patch:
                decision = PendingDecision(newest, patch)
                self.cache.pods.binding.pending_decisions[pod.uid] = decision
                self._kept(self._write(decision, held.pop_all()))
        await self._paced()
        return filter_result(args, result)

    async def _bound_node(self, pod: PodView, names: Sequence[str]) -> str:
        """The node to which the pod is bound or being bound; empty while it may go anywhere.

        Where nobody knows whether a bind reached the API server, the pod is read again.
        """
        binding = self.cache.pods.binding
        node = binding.node_of(pod.uid)
        if not binding.is_unknown(pod.uid) or node in names:
            return node
        found = await retry(lambda: self._cluster.get_pod(pod.namespace, pod.name), pace=self._options.pace)
        if found and found.uid == pod.uid and found.node:
            return found.node
        binding.end(pod.uid)
        return ""

    async def _choose(self, pod: PodView, names: Sequence[str]) -> FilterResult | NoDemand:
        """A choice that still holds. It is made in slices, for many nodes take long: if the chosen node has changed
        meanwhile it is tried again, and if the pod no longer fits there, all nodes are.
        """
        result = await run_in_slices(filter_nodes_pausing(self.cache.snapshot(pod), pod, names))
        for _ in range(MAX_RETRIES):
            if isinstance(result, NoDemand) or result.placed is None or self._holds(pod, result.placed):
                return result
            node = result.placed.node_info.node.name
            again = await run_in_slices(filter_nodes_pausing(self.cache.snapshot(pod), pod, [node]))
            if isinstance(again, FilterResult) and again.placed:
                result = replace(result, placed=again.placed)
            else:
                result = await run_in_slices(filter_nodes_pausing(self.cache.snapshot(pod), pod, names))
        raise HamiError(
            f"pod {pod.key}: the nodes change faster than they can be looked at", hint="the pod is scheduled again"
        )

    def _holds(self, pod: PodView, placed: PodFit) -> bool:
        """Whether the node, what others have of it, and the quota are still those of the choice."""
        snapshot = self.cache.snapshot(pod)
        node_info, quota = placed.node_info, placed.steps[0].context.quota
        return node_info_for(snapshot, pod, node_info.node.name) is node_info and snapshot.options.quota == quota

    def _assume(self, pod: PodView, result: FilterResult | NoDemand) -> PodPatch | None:
        """Count the decision from now on, or drop a former one. What is to be written to the pod, if anything."""
        if isinstance(result, NoDemand):
            return None
        if result.placed is None:
            return UNASSIGNED if self.cache.pods.release(pod.uid) else None
        patch = assignment(self.cache.families, pod, result.placed, self._now())
        self.cache.pods.assume(replace(pod, annotations={**pod.annotations, **patch.annotations}))
        return patch

    async def _write(self, decision: PendingDecision, held: AsyncExitStack) -> None:
        """Write the decision to the pod, unless a bind comes soon and does; then let go of what is ``held``. One that
        cannot be written is forgotten.

        A former decision that cannot be taken back is counted by other schedulers until the pod is gone.
        """
        pod, node, binding = decision.pod, decision.node, self.cache.pods.binding
        binding.unwritten.pop(pod.uid, None)
        async with held:
            try:
                if not node or await decision.unclaimed(within=self._options.bind_within):
                    decision.written = await write(self._cluster, pod, decision.patch, pace=self._options.pace)
            except ClusterError as error:
                self._forget(pod, node, error)
            except Exception as error:  # boundary: nobody waits for this task
                log.exception("writing a decision broke", pod=pod.key)
                self._forget(pod, node, ClusterError(f"{type(error).__name__}: {error}"))
            else:
                if node and decision.written:
                    self.cache.pods.confirm(decision.written)
                if node:
                    self._events.pod(pod, FILTERED, f"devices are kept for the pod on node {node}", warning=False)
            finally:
                del binding.pending_decisions[pod.uid]
                decision.done.set()

    async def _paced(self) -> None:
        """Let binds get on. What is decided faster than it is bound waits anyhow, and the API server with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(YIELD_S):
                while len(self._binds) >= AHEAD:
                    await asyncio.wait(self._binds.values(), return_when=asyncio.FIRST_COMPLETED)

    def _forget(self, pod: PodView, node: str, error: ClusterError) -> None:
        """A decision could not be written: the bind fails, and says why."""
        if not node:
            log.info("former decision not taken back", pod=pod.key, problem=error.message)
            return
        pods = self.cache.pods
        pods.forget(pod.uid, error.found if isinstance(error, OvertakenError) else None)
        why = f"devices were found on node {node}, and could not be written to the pod: {error.message}"
        if not error.not_found:  # else nobody binds it any more
            pods.binding.unwritten[pod.uid] = why
        self._events.pod(pod, UNFILTERED, why, warning=True)

    async def bind(self, request: Json) -> Json:
        """ExtenderBindingArgs in, ExtenderBindingResult out.

        A kube-scheduler that gave up waiting and asks once more waits for the bind that runs.
        """
        args = binding_args(request)
        key = (args.uid, args.node)
        if key not in self._binds:
            self._binds[key] = self._started(self._bind(args))
            self._binds[key].add_done_callback(lambda _bound: self._binds.pop(key))
        return await asyncio.shield(self._binds[key])

    async def _bind(self, args: BindingArgs) -> Json:
        """Take the pod with its decision from the cache, bind it, and report the outcome in an Event.

        ``Binder.bind`` locks the node, marks the pod, checks again that it fits, and creates the Binding.
        """
        binding = self.cache.pods.binding
        decision = self._pending(args)
        try:
            pod = await self._bind_newest(await self._begun(args, decision), args.node, decision)
        except HamiError as error:
            settle = binding.mark_unknown if isinstance(error, UnsureError) else binding.end
            settle(args.uid)
            self._give_up(args.uid, decision, error)
            subject = PodView(uid=args.uid, namespace=args.namespace, name=args.name)
            self._events.pod(subject, UNBOUND, str(error), warning=True)
            return {"Error": str(error)}
        self._events.pod(pod, BOUND, f"bound to node {args.node}", warning=False)
        return {"Error": ""}

    def _pending(self, args: BindingArgs) -> PendingDecision | None:
        """The decision that is to be bound, if it is not written yet."""
        decision, known = self.cache.pods.binding.pending_decisions.get(args.uid), self.cache.pods.assumed.get(args.uid)
        return decision if decision and known and known.entry.node == decision.node == args.node else None

    async def _begun(self, args: BindingArgs, decision: PendingDecision | None) -> PodView:
        """The pod with its decision, which is being bound from now on. A decision for another node is waited for."""
        pods = self.cache.pods
        if decision:
            pod = pods.assumed[args.uid].entry.pod
            pods.binding.begin(pod, args.node)
            return pod
        async with pods.binding.turn(args.uid):
            if why := pods.binding.unwritten.pop(args.uid, ""):
                raise HamiError(why, hint="the pod is scheduled again")
            pod = await self._decided_pod(args)
            pods.binding.begin(pod, args.node)
            return pod

    def _give_up(self, uid: str, decision: PendingDecision | None, error: HamiError) -> None:
        """A decision that the bind was to write, and could not, holds nothing."""
        pods = self.cache.pods
        if decision and decision.claimed.is_set() and not pods.written(uid):
            pods.forget(uid, error.found if isinstance(error, OvertakenError) else None)

    async def _bind_newest(self, pod: PodView, node: str, decision: PendingDecision | None) -> PodView:
        """Bind the pod as it is now. Where our watch has not shown yet that another scheduler has decided anew for the
        same node, and is not binding it, that decision counts.
        """
        try:
            await self._binder.bind(pod, node, decision)
        except OvertakenError as error:
            annotations = error.found.annotations
            if (
                error.found.node
                or annotations.get(ASSIGNED_NODE) != node
                or annotations.get(BIND_PHASE) == PHASE_ALLOCATING
            ):
                raise
            self._give_up(pod.uid, decision, error)
            pod = error.found
            await self._binder.bind(pod, node)
        return pod

    async def _decided_pod(self, args: BindingArgs) -> PodView:
        """The pod with the decision for the node on it: from the cache, or from the API server. The decision may be
        another scheduler's, which our watch has not shown yet. One of ours that was not written is none.
        """
        known = self.cache.pods.index.entries.get(args.uid)
        if known and known.node == args.node and self.cache.pods.written(args.uid):
            return known.pod
        found = await self._cluster.get_pod(args.namespace, args.name)
        if found is None or found.uid != args.uid:
            raise HamiError(f"pod {args.namespace}/{args.name} is gone", hint="nothing to do")
        return found

    async def review(self, request: Json) -> Json:
        """AdmissionReview with a request in, AdmissionReview with a response out."""
        return await self._reviewer.review(request)

    def problems(self) -> tuple[str, ...]:
        """Why no pod can be decided on at present; empty when one can."""
        missing = self.cache.missing
        if not missing:
            return ()
        reachable = self._cluster.reachable.value
        return (f"not listed yet: {', '.join(missing)}", *([reachable] if reachable else ()))

    @property
    def settled(self) -> bool:
        """Whether all that was begun is finished, and the watch has shown it."""
        return not (self._unfinished or self.cache.pods.assumed or self.cache.pods.binding.pending)

    @property
    def recent(self) -> Sequence[RecordedEvent]:
        """The last Events of this process."""
        return tuple(self._events.recent)

    def knows(self, other: Extender) -> bool:
        """Whether our watch has shown all that the other's has."""
        return self.cache.pods.shown.value >= other.cache.pods.shown.value

    async def _synced(self) -> tuple[str, ...]:
        """Wait a while for the first lists. The problems that remain."""
        if self.cache.missing:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.sync_timeout):
                    await self.cache.synced()
        return self.problems()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the cluster until ``stop`` is set; then what was begun is finished, within a few seconds."""
        loops = {
            "nodes": self._cluster.follow_nodes(self.cache.nodes.feed),
            "pods": self._cluster.follow_pods(self.cache.pods.feed),
            "quotas": self._cluster.follow_quotas(self.cache.quotas.feed),
            "resync": self._resync.run(),
            "events": self._events.run(),
            "warm-up": self._warm_up(),
            **({"resizes": self._resizes.run()} if self._options.resizes else {}),
            **({"templates": self._templates.run()} if self._options.claim_vendors else {}),
        }
        tasks: set[asyncio.Task[Any]] = {asyncio.create_task(loop, name=role) for role, loop in loops.items()}
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                _fail(task)
            if self._unfinished:
                await asyncio.wait(self._unfinished, timeout=self._options.stop_timeout)
        finally:
            for task in (stopped, *tasks):
                await cancel(task)

    async def _warm_up(self) -> NoReturn:
        """Once all is listed, prepare for the first filter beside whatever else is asked."""
        await self.cache.synced()
        await run_in_slices(warm_up_pausing(self.cache.snapshot(PodView(uid="", namespace="", name=""))))
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    def _started(self, answer: Coroutine[Any, Any, Json]) -> asyncio.Task[Json]:
        """A task of its own for the answer: it is finished also when nobody waits for it any more."""

        async def answered() -> Json:
            try:
                return await answer
            except HamiError as error:
                return {"Error": str(error)}

        return self._kept(answered())

    def _kept(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that the end waits for."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task


def why_pending(result: FilterResult, names: Sequence[str]) -> str:
    """Why a pod waits, in one line: which rule stands in the way on how many nodes."""
    if not names:
        return "no node was offered: other rules of kube-scheduler have ruled out all of them"
    return f"no node fits: {result.summary}"


def _fail(task: asyncio.Task[Any]) -> NoReturn:
    """Raise what ended one of the loops, none of which ends by itself; the log names it."""
    error = task.exception() or RuntimeError("it ended without an error")
    log.error("a loop of the scheduler broke, and the process ends", loop=task.get_name(), problem=repr(error))
    raise error


KNOW_S = 60.0
"""How long a new extender may take to know the cluster."""
FINISH_S = 10.0
"""How long calls wait for the former one. kube-scheduler waits 30 s for an answer."""
AGAIN_S = 30.0
"""When a change that could not be taken up for the moment is tried again."""

LIVE = frozenset({"statusPage", "hamiMetrics"})
"""Keys of the scheduler's section that are asked for at each request."""
SWAPPED = frozenset(
    {
        "replacesDefault",
        "gpuSchedulerPolicy",
        "nodeSchedulerPolicy",
        "refuseImpossible",
        "resizeByAnnotation",
        "claimVendors",
    }
)
"""Keys of the scheduler's section that a new extender is made with. The others are of the process and its ports."""


def scheduler_change(before: Configuration, after: Configuration) -> ConfigurationChange:
    """Of the scheduler's keys and the vendors'; daemons' own keys have no effect here."""
    old, new = before.effective(), after.effective()
    sections: list[Any] = [old.get("scheduler") or {}, new.get("scheduler") or {}]
    own = [key for key in sections[1] if sections[1][key] != sections[0].get(key)]
    vendors = [f"vendors.{name}" for name in _vendors(new) if _vendors(new)[name] != _vendors(old).get(name)]
    vendors += [f"vendors.{name}" for name in _vendors(old).keys() - _vendors(new).keys()]
    swapped = [*(f"scheduler.{key}" for key in own if key in SWAPPED), *vendors]
    return ConfigurationChange(
        live=tuple(
            sorted(
                [
                    *(f"scheduler.{key}" for key in own if key in LIVE),
                    *(["logLevel"] if old.get("logLevel") != new.get("logLevel") else []),
                ]
            )
        ),
        swapped=tuple(sorted(swapped)),
        restart=tuple(
            sorted(
                [
                    *(f"scheduler.{key}" for key in own if key not in SWAPPED | LIVE),
                    *(["logFormat"] if old.get("logFormat") != new.get("logFormat") else []),
                ]
            )
        ),
    )


def _vendors(effective: Mapping[str, object]) -> Mapping[str, object]:
    found = effective.get("vendors")
    return found if isinstance(found, Mapping) else {}


class Decisions:
    """Answers kube-scheduler and the API server by the extender of the moment."""

    def __init__(self, extender: Extender) -> None:
        self._current = extender
        self._open = asyncio.Event()
        self._open.set()
        self._running = 0
        self._lives: dict[Extender, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()

    @property
    def extender(self) -> Extender:
        """The one that decides now."""
        return self._current

    async def filter(self, request: Json) -> Json:
        """As ``Extender.filter``."""
        return await self._asked(lambda current: current.filter(request))

    async def bind(self, request: Json) -> Json:
        """As ``Extender.bind``."""
        return await self._asked(lambda current: current.bind(request))

    async def review(self, request: Json) -> Json:
        """As ``Extender.review``. It decides nothing about devices, so it need not wait."""
        return await self._current.review(request)

    async def _asked(self, ask: Callable[[Extender], Awaitable[Json]]) -> Json:
        await self._open.wait()
        self._running += 1
        try:
            return await ask(self._current)
        finally:
            self._running -= 1

    def problems(self) -> tuple[str, ...]:
        """As ``Extender.problems``."""
        return self._current.problems()

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``: then what was begun is finished. Raises what an extender that decides raises."""
        self._begin(self._current)
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            while not stop.is_set():
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait(), name="changed")
                ended = {task for _stop, task in self._lives.values()}
                done, _ = await asyncio.wait({stopped, changed, *ended}, return_when=asyncio.FIRST_COMPLETED)
                await cancel(changed)
                for extender, (own, task) in list(self._lives.items()):
                    if task in done:
                        del self._lives[extender]
                        task.result()
                        if not own.is_set():
                            return
        finally:
            await cancel(stopped)
            for own, _task in self._lives.values():
                own.set()
            for _own, task in self._lives.values():
                await task
            self._lives.clear()

    def _begin(self, extender: Extender) -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(extender.run(stop), name="extender")
        self._lives[extender] = (stop, task)
        self._changed.set()

    def _end(self, extender: Extender) -> None:
        if life := self._lives.get(extender):
            life[0].set()

    async def replace(self, extender: Extender) -> str:
        """Decide by another one from now on. Answers why not; then the former one still decides."""
        self._begin(extender)
        if not await poll_condition(lambda: not extender.problems(), within=KNOW_S):
            self._end(extender)
            return f"the cluster was not known within {KNOW_S:g} s: {'; '.join(extender.problems())}"
        former = self._current
        self._open.clear()
        try:
            done = await poll_condition(lambda: not self._running and former.settled, within=FINISH_S)
            done = done and await poll_condition(lambda: extender.knows(former), within=FINISH_S)
            if not done:
                self._end(extender)
                return f"what was begun was not finished within {FINISH_S:g} s"
            self._current = extender
        finally:
            self._open.set()
        self._end(former)
        return ""


class SchedulerReloader:
    """Compares the files with what is in force every few seconds, and swaps or refuses."""

    def __init__(
        self,
        source: ConfigurationSource,
        configuration: Configuration,
        decisions: Decisions,
        make: Callable[[Configuration], Extender],
        *,
        every: float,
    ) -> None:
        self.configuration = configuration
        self.reloads = Reloads()
        self._source = source
        self._decisions = decisions
        self._make = make
        self._every = every
        self._woken = asyncio.Event()
        self._judged = ""
        self._due: float | None = None

    def again(self) -> None:
        """Judge the files anew, even if they are the same."""
        self._judged = ""
        self._woken.set()

    async def run(self) -> NoReturn:
        """For ever."""
        self._judged = await asyncio.to_thread(self._source.digest)
        while True:
            try:
                async with asyncio.timeout(self._every):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            await self._look()

    async def _look(self) -> None:
        digest = await asyncio.to_thread(self._source.digest)
        now = asyncio.get_running_loop().time()
        if digest == self._judged and (self._due is None or now < self._due):
            return
        self._due = None
        try:
            wanted = await asyncio.to_thread(self._source.read)
            if await asyncio.to_thread(self._source.digest) != digest:
                return  # it changed while it was read; the next look tells
            self._judged = digest
            refused, why = await self._judge(wanted)
        except HamiError as error:
            self._judged = digest
            refused, why = ReloadRefusal.INVALID, problems_of(error)
        if refused is None:
            self.reloads.reason = self.reloads.problem = ""
            return
        if refused is ReloadRefusal.BUSY:
            self._due = now + AGAIN_S
        self.reloads.reason, self.reloads.problem = refused.value, why
        self.reloads.refusals[refused] += 1
        log.warning("configuration refused", reason=refused.value, why=why, generation=self.reloads.generation)

    async def _judge(self, wanted: Configuration) -> tuple[ReloadRefusal | None, str]:
        found = scheduler_change(self.configuration, wanted)
        if found.restart:
            keys = ", ".join(found.restart)
            return (
                ReloadRefusal.RESTART,
                f"needs a restart of the scheduler: {keys}; nothing of this change is in force",
            )
        if found.swapped and (why := await self._decisions.replace(self._make(wanted))):
            return ReloadRefusal.BUSY, why
        self.configuration = wanted
        if not (found.swapped or found.live):
            return None, ""
        if "logLevel" in found.live:
            self._source.level(wanted.settings.log_level)
        self.reloads.generation += 1
        keys = ", ".join((*found.live, *found.swapped))
        log.info("configuration taken up", generation=self.reloads.generation, changed=keys)
        return None, ""
