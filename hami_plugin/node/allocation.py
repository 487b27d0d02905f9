"""One resource's answers to the kubelet: which ids it should take, what a container receives, who really holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hami_plugin.aio import Watched
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles
from hami_plugin.log import logger
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Assignment
from hami_plugin.model.ports import Checkpoint, Observer, Offer
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.granting import Granting
from hami_plugin.node.guarding import Guard
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.offering import Offering
from hami_plugin.node.overcommit import Overcommitment
from hami_plugin.node.pods import PodTable
from hami_plugin.node.preparation import Preparation
from hami_plugin.node.questions import question_of
from hami_plugin.node.refusals import Refusals
from hami_plugin.node.settlement import Settlement
from hami_plugin.node.waiting import Waiting
from hami_plugin.policy.identity import Again, Found, Held, Identity, Unannotated, Unknown, handed_over
from hami_plugin.policy.overcommit import AS_HAMI, Account
from hami_plugin.policy.preferred import preferred
from hami_plugin.vendor import Family, Units

log = logger(__name__)


MOST_PREPARED = 8
"""How often the host is prepared for one Allocate. The decision changes meanwhile only where others race with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Who is to have what. ``new``: it is not held yet."""

    held: Held
    assignment: Assignment
    new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """What the operator decided. ``wait`` is in seconds; ``counted`` is what other pods count for, None for nothing."""

    node: str
    wait: float = 2.0
    serve_unannotated: bool = False
    counted: Account | None = AS_HAMI


class Allocator:
    """Decides and hands out for one family. Everything between two awaits happens at once, so no two can collide.

    ``outdated`` says why what is known of pods may be old; empty while it is not. ``refresh`` has them read again, and
    answers whether it is its turn.
    """

    def __init__(
        self,
        family: Family,
        *,
        snapshot: Watched[Snapshot],
        pods: PodTable,
        ledger: Ledger,
        settlement: Settlement,
        events: EventRecorder,
        checkpoint: Checkpoint,
        host: HostFiles,
        guard: Guard,
        rules: AllocationRules,
        observer: Observer,
        units: Units | None = None,
        outdated: Callable[[], str] = lambda: "",
        refresh: Callable[[], bool] = lambda: False,
    ) -> None:
        self.question = question_of(family, units)
        self.resource = self.question.resource
        self._snapshot = snapshot
        self._pods = pods
        self._ledger = ledger
        self._settlement = settlement
        self._checkpoint = checkpoint
        self._observer = observer
        self._offering = Offering(family, units, snapshot)
        self._waiting = Waiting(
            self.question,
            pods=pods,
            ledger=ledger,
            settlement=settlement,
            node=rules.node,
            within=rules.wait,
            room=self._offering.room,
            refresh=refresh,
        )
        self._refusals = Refusals(settlement, events)
        self._granting = Granting(
            family,
            self.question,
            snapshot=snapshot,
            ledger=ledger,
            refusals=self._refusals,
            serve_unannotated=rules.serve_unannotated,
        )
        self._overcommitment = Overcommitment(
            family,
            self.question,
            snapshot=snapshot,
            pods=pods,
            ledger=ledger,
            refusals=self._refusals,
            observer=observer,
            account=rules.counted,
            within=rules.wait,
            outdated=outdated,
        )
        self._preparation = Preparation(
            family, self.resource, snapshot=snapshot, host=host, guard=guard, refusals=self._refusals, observer=observer
        )

    def offers(self) -> tuple[Offer, ...]:
        """All that the kubelet is to know of, by the devices of this moment."""
        return self._offering.offers()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """What the kubelet should choose. An empty answer leaves the choice to it.

        The kubelet may be ahead of our watch, and its choice without a decision would not fit the decision: so this
        waits for somebody who asks for this many, as long as Allocate would.
        """
        waiting = await self._waiting.of_size(size)
        return preferred(
            available,
            must_include,
            size,
            waiting=waiting,
            held=self._ledger.held,
            resource=self.resource,
            snapshot=self._snapshot.value,
        )

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Hand out what the container that asks may have. ``RefusedError`` with the reason otherwise."""
        start = time.perf_counter()
        outcome = "failed"
        try:
            self._offering.check(ids)
            if undelivered := await self._undelivered(ids):
                identity: Identity = Again(held=undelivered)
            else:
                identity = await self._overcommitment.awaited(ids, lambda: self._waiting.identify(ids))
            self._offering.check(ids)  # a device may have gone while we waited
            answer = await self._hand_out(ids, identity)
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("allocate refused", resource=self.resource, reason=refusal.reason, why=refusal.message)
            raise
        finally:
            self._observer.allocation(self.resource, outcome, time.perf_counter() - start)
        return answer

    async def require_host(self) -> None:
        """``RefusedError`` while the host lacks what containers were promised; the kubelet will ask again."""
        await self._preparation.require()

    async def afresh(self, starting: Iterable[tuple[str, str]]) -> None:
        """Remove what former starts of these containers left on the host; each by its pod's UID and its name."""
        await self._preparation.afresh(starting)

    def holders(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """The containers that these ids were handed out to, as far as is known."""
        wanted = frozenset(ids)
        shares = self._ledger.held.values()
        return [(h.uid, h.container) for h in shares if h.resource == self.resource and h.ids == wanted]

    async def _undelivered(self, ids: Sequence[str]) -> Held | None:
        """The share under these ids that the kubelet asks for once more, though the next container may have them too.

        The kubelet writes each answer down before it asks for the next container. Where its checkpoint cannot be read,
        it is taken to have them all.
        """
        shares = handed_over(ids, self._ledger.held, self.resource)
        if not shares:
            return None
        try:
            kept = {(one.uid, one.container, one.ids) for one in await self._checkpoint.kept(self.resource)}
        except HamiError as error:
            log.warning("what the kubelet has is not known", resource=self.resource, problem=error.message)
            return None
        return next((one for one in shares if (one.uid, one.container, one.ids) not in kept), None)

    async def _hand_out(self, ids: Sequence[str], identity: Identity) -> Answer:
        """Decide, prepare the host, and decide once more: preparing takes its time, and others are served meanwhile.

        What is handed out is the last decision, and only if the host was prepared for exactly that one.
        """
        plan = self._plan(ids, identity)
        for _ in range(MOST_PREPARED):
            answer = await self._preparation.answer(plan.assignment)
            self._offering.check(ids)
            prepared, plan = plan.assignment, self._plan(ids, self._still(ids, identity), again=True)
            if plan.assignment == prepared:
                await self._commit(plan)
                return answer
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"the decision for {min(ids)} changed {MOST_PREPARED} times while the host was made ready for it",
            code="UNAVAILABLE",
            hint="delete the pod if its controller does not start another one",
        )

    def _still(self, ids: Sequence[str], identity: Identity) -> Identity:
        """Who asks, as of now. Whoever held these ids when they were asked for is answered, if that is still so."""
        if isinstance(identity, Again):
            held = self._ledger.held.get(identity.held.key)
            if held and (held.ids, held.grants) == (identity.held.ids, identity.held.grants):
                return Again(held=held)
        return self._waiting.identified(ids)

    def _plan(self, ids: Sequence[str], identity: Identity, *, again: bool = False) -> _Plan:
        """Who is to have the ids, and what of each device. Nothing is taken yet."""
        match identity:
            case Unknown():
                raise self._refusals.refused(identity.reason, identity.message, identity.pods)
            case Again(held=held):
                return self._repeated(held)
            case Unannotated(pod=pod, container=container):
                held = self._granting.whole(ids, pod, container)
            case Found(claim=claim):
                pod, container = claim.pod, claim.container
                held = self._granting.decided(ids, claim)
                self._overcommitment.require(ids, claim, again=again)
        return _Plan(held=held, assignment=self._preparation.assigned(held, pod, container))

    async def _commit(self, plan: _Plan) -> None:
        """Nothing is awaited between the decision and the reservation. The answer waits for the journal."""
        held, assignment = plan.held, plan.assignment
        pod, container = assignment.pod, assignment.container
        if plan.new:
            self._ledger.reserve(held)
            self._ledger.write(held)
        try:
            await self._ledger.written()  # a repeated call may come while the first one waits for its entry
        except OSError as error:
            self._take_back(plan)
            raise self._preparation.unprepared(pod, container, error) from error
        except BaseException:  # given up by the kubelet: nobody has the answer, and it will ask again
            self._take_back(plan)
            raise
        if not plan.new:
            if held.key not in self._ledger.held:
                gone = HamiError("the share was taken back meanwhile")
                raise self._preparation.unprepared(pod, container, gone)
            self._settlement.note(pod.uid)
            return
        self._settlement.note(pod.uid)
        log.info(
            "allocated",
            pod=pod.key,
            container=container.name,
            resource=self.resource,
            devices=[share.device.uuid for share in assignment.shares],
        )

    def _take_back(self, plan: _Plan) -> None:
        """What nobody has been answered yet. A repeated call leaves the first one what it has."""
        if plan.new:
            self._ledger.drop([plan.held.key])

    def _repeated(self, held: Held) -> _Plan:
        """The same answer once more; everything in it follows from the pod, the container and the grants."""
        pod = self._pods.get(held.uid)
        container = pod.container(held.container) if pod else None
        if pod is None or container is None or pod.phase != "Pending":
            message = f"these devices are held by {held.namespace}/{held.pod}, which is not starting"
            raise self._refusals.refused(RefusalReason.NO_PENDING_POD, message, (pod,) if pod else ())
        return _Plan(held=held, assignment=self._preparation.assigned(held, pod, container), new=False)
