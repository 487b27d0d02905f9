"""One resource's answers to the kubelet: which ids it should take, and what a container receives.

``Allocator.allocate`` matches the ids with a pod, checks what it may hold, prepares the host and commits the share.
Before a container starts, ``StartCheck`` asks whether the answer that it will start with was made for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hami_plugin.allocation.capacity import (
    Capacity,
    DeviceFacts,
    DeviceTable,
    NodeState,
    OfferedDevices,
    TooMuch,
)
from hami_plugin.allocation.identity import (
    Found,
    HeldShare,
    Identity,
    Pending,
    PodReader,
    Repeated,
    StandIns,
    Unannotated,
    Unknown,
    choose_preferred,
    find_handed_over,
    identify,
)
from hami_plugin.allocation.preparation import Preparation
from hami_plugin.allocation.settlement import Refusals
from hami_plugin.errors import HamiError, RefusalReason, RefusedError, WireError
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import Snapshot, physical_counts, physical_id
from hami_plugin.model.placement import Assignment
from hami_plugin.model.ports import CheckpointEntry
from hami_plugin.model.views import ContainerView
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import Question, decided_shares
from hami_plugin.sdk import Family, Units
from hami_plugin.vendor_boundary.guard import Guard

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions


log = logger(__name__)


class StartCheck:
    """Reads in the kubelet's checkpoint which container has the ids, and for which one they were answered.

    What a former start of that container left on the host is then removed by ``clean``.

    The answer itself says so, so neither a restart nor a lost journal, nor a pod's end, can hide an exchange. Answers
    of another plugin, from before this one served the node, say nothing: there the pod's own decision counts.
    """

    def __init__(
        self, question: Question, node: NodeState, *, clean: Callable[[Iterable[tuple[str, str]]], Awaitable[None]]
    ) -> None:
        self._question = question
        self._node = node
        self._clean = clean

    async def confirm(self, ids: Sequence[str]) -> None:
        """Return if the container may start; ``RefusedError`` otherwise. The kubelet will ask again at each start."""
        outcome = "failed"
        try:
            owners = await self._owners(frozenset(ids))
            for kept in owners:
                self._judge(kept)
            await self._clean([(kept.uid, kept.container) for kept in owners])
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("container start refused", resource=self._question.resource, why=refusal.message)
            raise
        finally:
            self._node.observer.container_start(self._question.resource, outcome)

    async def _owners(self, ids: frozenset[str]) -> list[CheckpointEntry]:
        """Who has exactly these ids: one container, or several of a pod where one takes an init container's."""
        if not ids:
            raise RefusedError(RefusalReason.INVALID_REQUEST, "no device ids were named", code="INVALID_ARGUMENT")
        try:
            found = await self._node.checkpoint.kept(self._question.resource, ids)
        except HamiError as error:
            raise _unknown(f"nobody can tell who has {min(ids)}: {error.message}", hint=error.hint) from error
        if not found:
            raise _unknown(f"the kubelet's checkpoint does not say yet who has {min(ids)}")
        if len({one.uid for one in found}) > 1:  # which of them starts nobody can tell, and another may be running
            names = " and ".join(self._named(one) for one in found)
            raise _unknown(f"the kubelet's checkpoint has {min(ids)} at {names}")
        return list(found)

    def _judge(self, kept: CheckpointEntry) -> None:
        if not kept.answered_for:
            self._judge_by_decision(kept)
        elif not kept.right:
            given = self._given(kept)
            to = f"container {given.container} of pod {given.namespace}/{given.pod}" if given else kept.answered_for
            raise self._wrong(f"{self._named(kept)} would start with what was answered for {to}", kept, given)

    def _judge_by_decision(self, kept: CheckpointEntry) -> None:
        """The pod's own decision must name the devices that the container has."""
        pod = self._node.pods.get(kept.uid)
        if pod is None:
            raise _unknown(f"{self._named(kept)} is not known from the API server yet")
        if self._question.allocated not in pod.annotations:
            return  # served whole devices by the kubelet's own ids: what it holds is what it was given
        try:
            shares = decided_shares(pod, self._question)
        except WireError as error:
            raise self._wrong(str(error), kept) from error
        # An init container's devices pass on to later containers, whatever was decided for those.
        own = [s for s in shares if s.container.name == kept.container or _passes_on(s.container)]
        if not any(Counter(share.devices) == physical_counts(kept.ids) for share in own):
            raise self._wrong(f"the decision for pod {pod.key} does not name the devices that it holds", kept)

    def _given(self, kept: CheckpointEntry) -> HeldShare | None:
        """The share that reached another container than its own, if it is still on record."""
        uid, _, container = kept.answered_for.partition("/")
        held = self._node.ledger.held.get((uid, container, self._question.resource))
        return held if held and held.ids == kept.ids else None

    def _named(self, kept: CheckpointEntry) -> str:
        pod = self._node.pods.get(kept.uid)
        return f"container {kept.container} of {f'pod {pod.key}' if pod else f'the pod with UID {kept.uid}'}"

    def _wrong(self, message: str, kept: CheckpointEntry, given: HeldShare | None = None) -> RefusedError:
        """Take back what was ``given`` to the wrong one, so that it can be handed out again, and say so."""
        if given and not given.settled:
            self._node.ledger.drop([given.key])
        if given:
            self._fail_if_shifted(given)
        refusal = RefusedError(
            RefusalReason.WRONG_HOLDER, message, hint="delete the pod; its controller will start another one"
        )
        pod = self._node.pods.get(kept.uid)
        if pod:
            self._node.events.refused([pod], RefusalReason.WRONG_HOLDER, str(refusal))
            self._node.settlement.fail(
                pod
            )  # its admission is over: what it still seems to wait for, it will never ask for
        return refusal

    def _fail_if_shifted(self, lost: HeldShare) -> None:
        """Fail a pod that got shares after the one that it ``lost``: each of them reached the container before."""
        pod = self._node.pods.get(lost.uid)
        order = [container.name for container in pod.containers] if pod else []
        if pod is None or lost.container not in order:
            return
        later = order[order.index(lost.container) + 1 :]
        shifted = [
            h for h in self._node.ledger.held.of_pod(lost.uid) if h.resource == lost.resource and h.container in later
        ]
        if shifted:
            self._node.ledger.drop([held.key for held in shifted])
            self._node.settlement.fail(pod)


def _passes_on(container: ContainerView) -> bool:
    return container.init and not container.restartable


def _unknown(message: str, *, hint: str = "") -> RefusedError:
    return RefusedError(
        RefusalReason.HOLDER_UNKNOWN,
        message,
        code="UNAVAILABLE",
        hint=hint or "the kubelet tries the container again by itself",
    )


class PendingPods:
    """The pods that wait for a resource, and which of them the kubelet asks for. It may be ahead of our watch.

    Both waits end after ``rules.wait`` seconds with what is known by then. The watch may have stalled, so where nobody
    fits by then, the node's pods are read again if it is this resource's turn, and there is as much time once more.
    """

    def __init__(self, question: Question, node: NodeState, devices: DeviceTable) -> None:
        self._question = question
        self._node = node
        self._devices = devices
        self._reader = PodReader(question, node.rules.node)
        self._turned_away: set[str] = set()

    def turn_away(self, uid: str) -> None:
        """A pod that was refused for good waits no more, though its end may not have been seen yet."""
        self._turned_away.add(uid)

    def known(self) -> Pending:
        """Who waits as of now, without pods whose decision has failed, or that were turned away."""
        node = self._node
        if self._turned_away:
            self._turned_away &= {pod.uid for pod in node.pods.pods}
        out = node.settlement.failed | self._turned_away
        pods, held = [pod for pod in node.pods.pods if pod.uid not in out], node.ledger.held
        known = self._reader.pending(pods, held, node.pods.ranks)
        stand_ins = StandIns(
            self._question, room=self._devices.free_ids, held=held, pods=node.pods.pods, others=known.next
        )
        return replace(known, instead=stand_ins.of)

    async def of_size(self, size: int) -> Pending:
        """Who waits, once somebody among them wants ``size`` ids, with a decision or without."""
        wait, changes = self._node.rules.wait, self._node.pods.changes
        deadline, refreshed = time.monotonic() + wait, False
        while True:
            known = self.known()
            if any(len(claim.devices) == size for claim in known.next) or any(
                one.container.amount(self._question.resource) == size for one in known.unannotated
            ):
                return known
            left = deadline - time.monotonic()
            if left > 0:
                await changes.changed(changes.version, timeout=left)
            elif refreshed or not self._node.refresh():
                return known
            else:
                deadline, refreshed = time.monotonic() + wait, True

    def identified(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, as of now."""
        return identify(ids, self.known(), self._node.ledger.held, self._question)

    async def identify(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, where a decision that is still on its way has a moment to arrive."""
        wait, pods = self._node.rules.wait, self._node.pods
        deadline, refreshed = time.monotonic() + wait, False
        while True:
            seen = pods.changes.version
            reason: RefusalReason | None = None
            match identity := self.identified(ids):
                case Found():
                    return identity
                case Repeated(held=held):
                    pod = pods.get(held.uid)
                    if pod is not None and pod.phase == "Pending":
                        return identity
                    reason = RefusalReason.NO_PENDING_POD  # a later pod has the ids, and the watch has not shown it yet
                case Unknown(reason=reason):
                    if reason is RefusalReason.AMBIGUOUS:
                        return identity
            left = deadline - time.monotonic()
            if left > 0:
                await pods.changes.changed(seen, timeout=left)
            elif refreshed or reason is not RefusalReason.NO_PENDING_POD or not self._node.refresh():
                return identity
            else:
                deadline, refreshed = time.monotonic() + wait, True


def question_of(family: Family, units: Units | None = None) -> Question:
    """The question about whole devices or shares of them, or about ``units``."""
    names = family.resources
    counted = (names.count, *(one.resource for one in names.units))
    resource, lock = units.resource if units else names.count, family.rules.lock
    return Question(
        resource=resource,
        to_allocate=family.rules.annotations.to_allocate,
        allocated=family.rules.annotations.allocated,
        memory="" if names.sized_by_count else names.memory,
        memory_percent=names.memory_percent,
        cores="" if names.cores_are_bits or names.cores_are_counted or names.sized_by_count else names.cores,
        memory_factor=names.memory_factor,
        also=tuple(name for name in counted if name != resource),
        ids=units.of_grant if units else names.ids,
        lock=lock.annotation if lock and not lock.named else "",
    )


MAX_IDS = 4096
"""Of one Allocate."""
STATIC_PODS = "a static pod cannot have devices, because no scheduler decides about it; make it a DaemonSet"
ALIGNED = (
    "the kubelet's topology policy chose from NUMA node {nodes} before it asked; turn enableNumaTopology off, "
    "or let pods name cards of the node that has their CPUs"
)
MAX_PREPARED = 8
"""How often the host is prepared for one Allocate. The decision changes meanwhile only where others race with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Who is to have what. ``new``: it is not held yet. ``unsure``: it may be more than what is left."""

    held: HeldShare
    assignment: Assignment
    new: bool = True
    unsure: bool = False


class Allocator:
    """Decides and hands out for one resource: a ``DevicePlugin``. Everything between two awaits happens at once, so no
    two calls can collide. ``proving``: a container starts only with an answer that was made for it.
    """

    pre_start_required = True
    """Whoever holds the devices, the host must have what the answer mounts."""

    def __init__(
        self,
        family: Family,
        node: NodeState,
        *,
        snapshot: Watched[Snapshot],
        guard: Guard,
        units: Units | None = None,
        partitions: Partitions | None = None,
        proving: bool = True,
    ) -> None:
        self.question = question_of(family, units)
        self.resource = self.question.resource
        self._node = node
        self._snapshot = snapshot
        counted = node.rules.counted
        self._devices = OfferedDevices(family, units, snapshot, masks=counted is not None and counted.masks)
        self.offers, self.met, self.follow = self._devices.rendered, self._devices.met, self._devices.follow
        self._waiting = PendingPods(self.question, node, self._devices)
        self._capacity = Capacity(family, self.question, node, partitions)
        self.preparation = Preparation(family, self.resource, node, guard, partitions, snapshot=snapshot)
        self._check = StartCheck(self.question, node, clean=self.preparation.clean) if proving else None
        self._refusals = Refusals(node.settlement, node.events)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """What the kubelet should choose. An empty answer leaves the choice to it.

        The kubelet may be ahead of our watch, and its choice without a decision would not fit the decision: so this
        waits for somebody who asks for this many, as long as Allocate would.
        """
        waiting = await self._waiting.of_size(size)
        return choose_preferred(
            available,
            must_include,
            size,
            waiting=waiting,
            held=self._node.ledger.held,
            resource=self.resource,
            snapshot=self._snapshot.value,
            starting=[pod.uid for pod in self._node.pods.pods if pod.phase == "Pending" and not pod.deleted],
        )

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Hand out what the container that asks may have. ``RefusedError`` with the reason otherwise."""
        start = time.perf_counter()
        outcome = "failed"
        try:
            answer = await self._hand_out(ids)
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("allocate refused", resource=self.resource, reason=refusal.reason, why=refusal.message)
            raise
        finally:
            self._node.observer.allocation(self.resource, outcome, time.perf_counter() - start)
        return answer

    async def pre_start(self, ids: Sequence[str]) -> None:
        """A container with these ids may start. ``RefusedError`` otherwise; what a former start left is removed."""
        await self.preparation.require()
        if self._check:
            await self._check.confirm(ids)
            return
        wanted = frozenset(ids)
        holders = [one for one in self._node.ledger.held.of_ids(self.resource, ids) if one.ids == wanted]
        await self.preparation.clean([(one.uid, one.container) for one in holders])

    async def _hand_out(self, ids: Sequence[str]) -> Answer:
        """Match the ids with a container, plan what it gets, prepare the host, and commit.

        Others are served while the host is prepared. If anything has changed by then, this plans once more, and commits
        only what the host was prepared for.
        """
        devices = self._devices.now()
        self._require_known(ids, devices)
        identity, excess, devices = await self._match(ids, devices)
        plan = self._plan(ids, identity, excess, devices)
        for _ in range(MAX_PREPARED):
            seen, prepared = self._seen(), plan.assignment
            answer = await self.preparation.answer(prepared)
            if plan.unsure or self._seen() != seen:
                still = self._still(ids, identity)
                devices = self._current(ids, devices)
                plan = self._plan(ids, still, self._capacity.excess(ids, still, devices), devices, again=True)
            if plan.assignment == prepared:
                await self._commit(plan)
                return answer
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"the decision for {min(ids)} changed {MAX_PREPARED} times while the host was made ready for it",
            code="UNAVAILABLE",
            hint="delete the pod if its controller does not start another one",
        )

    def _require_known(self, ids: Sequence[str], devices: Mapping[str, DeviceFacts]) -> None:
        """``RefusedError`` unless these are different ids of the node's devices."""
        if not ids or len(ids) > MAX_IDS or len(set(ids)) != len(ids):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"an Allocate must name 1 to {MAX_IDS} different device ids, this one names {len(ids)}",
                code="INVALID_ARGUMENT",
            )
        for replica in ids:
            uuid = physical_id(replica)
            if uuid not in devices or not devices[uuid].device.has_id(replica, devices[uuid].ids):
                raise RefusedError(
                    RefusalReason.UNKNOWN_DEVICE,
                    f"this node has no device {replica[:96]!r}",
                    code="INVALID_ARGUMENT",
                    hint="the kubelet has not taken the newest list yet; delete the pod so that it is tried again",
                )

    def _current(self, ids: Sequence[str], known: Mapping[str, DeviceFacts]) -> Mapping[str, DeviceFacts]:
        """The devices of this moment. ``RefusedError`` where one of these ids has gone since they were ``known``."""
        devices = self._devices.now()
        if devices is not known:
            self._require_known(ids, devices)
        return devices

    async def _match(
        self, ids: Sequence[str], devices: Mapping[str, DeviceFacts]
    ) -> tuple[Identity, TooMuch | None, Mapping[str, DeviceFacts]]:
        """Who asks, and what is too much for it by the devices of that moment.

        The end of others may come a moment after the decision.
        """
        owners = self._node.ledger.held.of_ids(self.resource, ids)
        if owners and (shares := find_handed_over(ids, owners)) and (held := await self._undelivered(shares)):
            return Repeated(held=held), None, self._current(ids, devices)
        deadline = time.monotonic() + self._node.rules.wait
        while True:
            seen = self._node.pods.changes.version
            identity = await self._waiting.identify(ids)
            devices = self._current(ids, devices)
            excess = self._capacity.excess(ids, identity, devices)
            left = deadline - time.monotonic()
            if not excess or left <= 0 or self._node.outdated():
                return identity, excess, devices
            await self._node.pods.changes.changed(seen, timeout=left)

    async def _undelivered(self, shares: Sequence[HeldShare]) -> HeldShare | None:
        """The share that the kubelet asks for once more, though the next container may have its ids too.

        The kubelet writes each answer down before it asks for the next container. Where its checkpoint cannot be read,
        it is taken to have them all.
        """
        try:
            entries = await self._node.checkpoint.kept(self.resource, shares[0].ids)
        except HamiError as error:
            log.warning("what the kubelet has is not known", resource=self.resource, problem=error.message)
            return None
        kept = {(one.uid, one.container, one.ids) for one in entries}
        return next((one for one in shares if (one.uid, one.container, one.ids) not in kept), None)

    def _seen(self) -> tuple[object, ...]:
        """All that a decision depends on. While this stays the same, so does the decision."""
        node = self._node
        return (
            self._snapshot.version,
            node.pods.changes.version,
            node.ledger.changes.version,
            node.settlement.failures,
        )

    def _still(self, ids: Sequence[str], identity: Identity) -> Identity:
        """Who asks, as of now. Whoever held these ids when they were asked for is answered, if that is still so."""
        if isinstance(identity, Repeated):
            held = self._node.ledger.held.get(identity.held.key)
            if held and (held.ids, held.grants) == (identity.held.ids, identity.held.grants):
                return Repeated(held=held)
        return self._waiting.identified(ids)

    def _hint(self, unknown: Unknown, ids: Sequence[str]) -> str:
        """What to do about it, where the reason alone does not tell."""
        nodes = self._devices.hinted(ids)
        match unknown.reason:
            case RefusalReason.NO_PENDING_POD:
                return STATIC_PODS
            case RefusalReason.DEVICE_MISMATCH if nodes:
                return ALIGNED.format(nodes=" and ".join(map(str, sorted(nodes))))
        return ""

    def _plan(
        self,
        ids: Sequence[str],
        identity: Identity,
        excess: TooMuch | None,
        devices: Mapping[str, DeviceFacts],
        *,
        again: bool = False,
    ) -> _Plan:
        """Who is to have the ids, and what of each device. Nothing is taken yet."""
        match identity:
            case Unknown():
                hint = self._hint(identity, ids)
                raise self._refusals.refused(identity.reason, identity.message, identity.pods, hint=hint)
            case Repeated(held=held):
                return self._repeated(held, devices)
            case Unannotated(pod=pod, container=container):
                try:
                    held = self._capacity.whole(ids, pod, container, devices)
                except RefusedError as refusal:
                    if refusal.reason is RefusalReason.NOT_SCHEDULED:
                        self._waiting.turn_away(pod.uid)
                    raise
            case Found(claim=claim):
                pod, container = claim.pod, claim.container
                held = self._capacity.decided(ids, claim, devices)
                if excess:
                    self._capacity.refuse(excess, claim, again=again)
        assignment = self.preparation.assigned(held, pod, container, devices)
        return _Plan(held=held, assignment=assignment, unsure=excess is not None)

    async def _commit(self, plan: _Plan) -> None:
        """Nothing is awaited between the decision and the reservation. The answer waits for the journal."""
        node, held, pod, container = self._node, plan.held, plan.assignment.pod, plan.assignment.container
        if plan.new:
            node.ledger.reserve(held)
            node.ledger.write(held)
        try:
            await node.ledger.written()  # a repeated call may come while the first one waits for its entry
        except BaseException as error:  # the disk refuses, or the kubelet has given up and will ask again
            if plan.new:
                node.ledger.drop([held.key])
            if isinstance(error, OSError):
                raise self.preparation.unprepared(pod, container, error) from error
            raise
        if not plan.new and held.key not in node.ledger.held:
            gone = HamiError("the share was taken back meanwhile")
            raise self.preparation.unprepared(pod, container, gone)
        node.settlement.note(pod.uid)
        if plan.new:
            # The kubelet is answered first: its pod waits for that, and nobody for a line of the log.
            asyncio.get_running_loop().call_soon(self._report, plan.assignment)

    def _report(self, given: Assignment) -> None:
        devices = [share.device.uuid for share in given.shares]
        log.info(
            "allocated", pod=given.pod.key, container=given.container.name, resource=self.resource, devices=devices
        )

    def _repeated(self, held: HeldShare, devices: Mapping[str, DeviceFacts]) -> _Plan:
        """The same answer once more; everything in it follows from the pod, the container and the grants."""
        pod = self._node.pods.get(held.uid)
        container = pod.container(held.container) if pod else None
        if pod is None or container is None or pod.phase != "Pending":
            message = f"these devices are held by {held.namespace}/{held.pod}, which is not starting"
            raise self._refusals.refused(RefusalReason.NO_PENDING_POD, message, (pod,) if pod else ())
        assignment = self.preparation.assigned(held, pod, container, devices)
        return _Plan(held=held, assignment=assignment, new=False)
