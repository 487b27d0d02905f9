"""One resource's answers to the kubelet: which ids it should take, what a container receives, who really holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami_plugin.aio import Watched
from hami_plugin.allocation.capacity import AS_HAMI, Account, DeviceFacts, DeviceTable, Overcommitment, TooMuch
from hami_plugin.allocation.container_start import StartCheck
from hami_plugin.allocation.identity import (
    Found,
    Held,
    Identity,
    Pending,
    Repeated,
    Unannotated,
    Unknown,
    handed_over,
    identify,
    pending,
    preferred,
    stand_ins,
)
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.preparation import Preparation
from hami_plugin.allocation.settlement import Refusals, Settlement
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles
from hami_plugin.log import logger
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import Snapshot, is_replica, physical_id, replica_ids
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.model.ports import Checkpoint, Observer, Offer
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.protocol.decisions import Claim, Question, ReadOnce, excess
from hami_plugin.protocol.register import DeviceInfo, Refuses
from hami_plugin.scheduler.engine.requests import is_part
from hami_plugin.sdk import Family, Units
from hami_plugin.vendor_boundary.guard import Guard


class PendingPods:
    """``node`` is this node's name. Both waits end after ``within`` seconds with what is known by then.

    A watch may have stalled without anybody noticing. So where nobody fits by then, ``refresh`` has this node's pods
    read again; it answers whether it is its turn, and then there is as much time once more. ``room`` is how many ids
    each device has that the kubelet may hand out.
    """

    def __init__(
        self,
        question: Question,
        *,
        pods: PodTable,
        ledger: Ledger,
        settlement: Settlement,
        node: str,
        within: float,
        room: Callable[[], Mapping[str, int]] = dict,
        refresh: Callable[[], bool] = lambda: False,
    ) -> None:
        self._question = question
        self._pods = pods
        self._ledger = ledger
        self._settlement = settlement
        self._node = node
        self._within = within
        self._room = room
        self._refresh = refresh
        self._read = ReadOnce()

    def known(self) -> Pending:
        """Who waits as of now, without pods whose decision has failed."""
        pods = [pod for pod in self._pods.pods if not self._settlement.failed(pod.uid)]
        self._read.keep(pods)
        known = pending(pods, self._ledger.held, self._question, self._node, read=self._read, ranks=self._pods.ranks)
        return replace(known, instead=partial(self._instead, known.next))

    def _instead(self, others: Sequence[Claim], claim: Claim) -> Sequence[str]:
        """The devices whose ids stand for a claim's own, as of now."""
        return stand_ins(
            claim,
            self._question,
            room=self._room(),
            held=self._ledger.held.values(),
            pods=self._pods.pods,
            others=others,
        )

    async def of_size(self, size: int) -> Pending:
        """Who waits, once somebody among them wants ``size`` ids, with a decision or without."""
        deadline, refreshed = time.monotonic() + self._within, False
        while not self._wants(size):
            left = deadline - time.monotonic()
            if left <= 0:
                if refreshed or not self._refresh():
                    break
                deadline, refreshed = time.monotonic() + self._within, True
                continue
            await self._pods.changes.changed(self._pods.changes.version, timeout=left)
        return self.known()

    def _wants(self, size: int) -> bool:
        known = self.known()
        return any(len(claim.devices) == size for claim in known.next) or any(
            stranger.container.amount(self._question.resource) == size for stranger in known.unannotated
        )

    def identified(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, as of now."""
        return identify(ids, self.known(), self._ledger.held, self._question)

    def _starting(self, again: Repeated) -> bool:
        pod = self._pods.get(again.held.uid)
        return pod is not None and pod.phase == "Pending"

    async def identify(self, ids: Sequence[str]) -> Identity:
        """Who asks for these ids, where a decision that is still on its way has a moment to arrive."""
        deadline, refreshed = time.monotonic() + self._within, False
        while True:
            seen = self._pods.changes.version
            identity = identify(ids, self.known(), self._ledger.held, self._question)
            left = deadline - time.monotonic()
            if isinstance(identity, Found) or (isinstance(identity, Repeated) and self._starting(identity)):
                return identity
            # Ids of a pod that starts no more are a later pod's, which the watch has not told of yet.
            late = RefusalReason.NO_PENDING_POD if isinstance(identity, Repeated) else None
            reason = identity.reason if isinstance(identity, Unknown) else late
            if reason is RefusalReason.AMBIGUOUS:
                return identity
            if left <= 0:
                if refreshed or reason is not RefusalReason.NO_PENDING_POD or not self._refresh():
                    return identity
                deadline, refreshed = time.monotonic() + self._within, True
                continue
            await self._pods.changes.changed(seen, timeout=left)


class Granting:
    """Of one family. ``RefusedError`` with the reason where a container can hold nothing. Nothing is written here."""

    def __init__(
        self,
        family: Family,
        question: Question,
        *,
        ledger: Ledger,
        pods: PodTable,
        refusals: Refusals,
        serve_unannotated: bool,
    ) -> None:
        self._family = family
        self._question = question
        self._ledger = ledger
        self._pods = pods
        self._refusals = refusals
        self._serve_unannotated = serve_unannotated

    def decided(self, ids: Sequence[str], claim: Claim, devices: Mapping[str, DeviceFacts]) -> Held:
        """As the decision has it, if that is not more than the container asked for."""
        granted = [grant.uuid for grant in claim.grants if grant.uuid in devices]
        registered = {uuid: devices[uuid].info for uuid in granted}
        advertised = {uuid: info.devmem for uuid, info in registered.items()}
        every_core = {uuid: devices[uuid].every_core for uuid in granted}
        too_much = excess(claim, self._question, advertised, every_core)
        if too_much:
            raise self._refusals.failed(RefusalReason.EXCEEDS_REQUEST, f"the decision grants {too_much}", claim.pod)
        self._require_whole(claim, registered)
        return self._held(ids, claim.pod, claim.container, claim.grants, devices)

    def whole(
        self, ids: Sequence[str], pod: PodView, container: ContainerView, devices: Mapping[str, DeviceFacts]
    ) -> Held:
        """For a pod without a decision: the kubelet's devices as they are, if nobody else has a share of them."""
        if not self._serve_unannotated:
            raise self._refusals.refused(
                RefusalReason.NOT_SCHEDULED,
                f"pod {pod.key} asks for {self._question.resource}, "
                f"but {pod.scheduler or 'its scheduler'} decided nothing",
                (pod,),
                hint="let HAMi's scheduler place it, or set unannotatedPods: serve",
            )
        uuids = list(dict.fromkeys(physical_id(replica) for replica in ids))
        problem = self._not_whole(uuids, len(ids), pod)
        if problem:
            message = f"pod {pod.key} can only have whole devices, but got {problem}"
            raise self._refusals.refused(RefusalReason.DEVICE_SHARED, message, (pod,))
        held = self._held(ids, pod, container, [self._whole(devices[uuid]) for uuid in uuids], devices)
        return replace(held, undecided=True)

    def _require_whole(self, claim: Claim, registered: Mapping[str, DeviceInfo]) -> None:
        """``RefusedError`` for a part of a device where this node hands out whole ones only, as it has announced."""
        whole_only, policy = self._family.node.whole_only, self._family.rules.policy
        if not whole_only or (policy and policy.limited(claim.pod)):
            return
        for grant in claim.grants:
            info = registered.get(grant.uuid)
            if info and is_part(info, grant.memory, grant.cores):
                message = (
                    f'container "{claim.container.name}" of pod {claim.pod.key} is granted a part of {grant.uuid} '
                    f"({grant.memory} of {info.devmem} of its memory, {grant.cores} of {info.devcore} of its cores); "
                    f"{Refuses(what='parts', why=whole_only)}"
                )
                hint = "let a scheduler place it that reads what the node says, or ask for whole devices"
                raise self._refusals.failed(RefusalReason.NOT_PREPARED, message, claim.pod, hint=hint)

    def _whole(self, facts: DeviceFacts) -> Grant:
        return Grant(
            uuid=facts.device.uuid,
            device_type=self._family.device_type,
            memory=facts.info.devmem,
            cores=facts.every_core,
        )

    def _not_whole(self, uuids: Sequence[str], shares: int, pod: PodView) -> str:
        """What keeps the pod from having these devices alone, in words; empty where nothing does."""
        taken = {
            grant.uuid: held for held in self._ledger.held.values() if held.uid != pod.uid for grant in held.grants
        }
        for uuid in uuids:
            if uuid in taken:
                return f"{uuid} is shared by {taken[uuid].namespace}/{taken[uuid].pod}"
        return f"{shares} shares of {len(uuids)} devices" if len(uuids) < shares else ""

    def _held(
        self,
        ids: Sequence[str],
        pod: PodView,
        container: ContainerView,
        grants: Sequence[Grant],
        devices: Mapping[str, DeviceFacts],
    ) -> Held:
        return Held(
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            resource=self._question.resource,
            ids=frozenset(ids),
            grants=tuple(self._placed(grant, pod, container, devices.get(grant.uuid)) for grant in grants),
            init=container.init and not container.restartable,
        )

    def _placed(self, grant: Grant, pod: PodView, container: ContainerView, facts: DeviceFacts | None) -> Grant:
        """Beside what all others hold of the same device. The journal keeps it, so that it is the same ever after.

        The kubelet asks once for each resource: what the container has already by another one is its place.
        """
        if facts is None:
            return grant
        others: list[Grant] = []
        for held in self._ledger.on(grant.uuid):
            same = [one for one in held.grants if one.uuid == grant.uuid]
            if same and (held.uid, held.container) == (pod.uid, container.name):
                return replace(grant, notes=same[0].notes)
            if not self._over(held):
                others += same
        return self._family.node.place(grant, facts.device, others)

    def _over(self, held: Held) -> bool:
        """Whether the container has ended: its pod has, or runs, which it does once its init containers are over."""
        pod = self._pods.get(held.uid)
        return pod is not None and (pod.terminal or (held.init and pod.phase == "Running"))


MAX_IDS = 4096
MAX_OFFERED = 200_000
"""Ids of one resource. The kubelet reads no list of so many, and a list of all must not fill the memory."""


class Offering:
    """Shares of a family's devices, or their ``units``."""

    def __init__(self, family: Family, units: Units | None, snapshot: Watched[Snapshot]) -> None:
        self._word = family.device_type
        self._numa_hints = family.node.numa_hints
        self._replicas = units.of_device if units else family.node.replicas
        self._snapshot = snapshot

    def offers(self) -> tuple[Offer, ...]:
        """Every share of every device, sorted by device index; all shares of a device share its health.

        ``HamiError`` when they are more than any kubelet takes.
        """
        counted = [(device, self._replicas(device)) for device in self._snapshot.value.devices]
        total = sum(count for _device, count in counted)
        if total > MAX_OFFERED:
            raise HamiError(
                f"{len(counted)} devices of {self._word} with {total} shares are more than the kubelet takes",
                hint=f"at most {MAX_OFFERED} are rendered; share each device among fewer containers",
            )
        return tuple(
            Offer(
                id=replica,
                healthy=device.health.offered,
                numa=device.numa if self._numa_hints else None,
            )
            for device, count in counted
            for replica in replica_ids(device.uuid, count)
        )

    def room(self) -> Mapping[str, int]:
        """How many ids each device has that the kubelet may hand out."""
        return {device.uuid: self._replicas(device) for device in self._snapshot.value.devices if device.health.offered}


def question_of(family: Family, units: Units | None = None) -> Question:
    """The question about whole devices or shares of them, or about ``units``."""
    names = family.resources
    counted = (names.count, *(one.resource for one in names.units))
    resource, lock = units.resource if units else names.count, family.rules.lock
    return Question(
        resource=resource,
        to_allocate=family.annotations.to_allocate,
        allocated=family.annotations.allocated,
        memory="" if names.sized_by_count else names.memory,
        memory_percent=names.memory_percent,
        cores="" if names.cores_are_bits or names.cores_are_counted or names.sized_by_count else names.cores,
        memory_factor=names.memory_factor,
        also=tuple(name for name in counted if name != resource),
        ids=units.of_grant if units else names.ids,
        lock=lock.annotation if lock and not lock.named else "",
    )


log = logger(__name__)


MAX_PREPARED = 8
"""How often the host is prepared for one Allocate. The decision changes meanwhile only where others race with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Who is to have what. ``new``: it is not held yet. ``unsure``: it may be more than what is left."""

    held: Held
    assignment: Assignment
    new: bool = True
    unsure: bool = False


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
        self._wait = rules.wait
        self._outdated = outdated
        self._devices = DeviceTable(family, units, snapshot, masks=rules.counted is not None and rules.counted.masks)
        self._offering = Offering(family, units, snapshot)
        self._waiting = PendingPods(
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
            ledger=ledger,
            pods=pods,
            refusals=self._refusals,
            serve_unannotated=rules.serve_unannotated,
        )
        self._overcommitment = Overcommitment(
            self.question,
            devices=self._devices,
            pods=pods,
            ledger=ledger,
            refusals=self._refusals,
            observer=observer,
            account=rules.counted,
            outdated=outdated,
        )
        self._preparation = Preparation(
            family, self.resource, host=host, guard=guard, refusals=self._refusals, observer=observer
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
            answer = await self._hand_out(ids)
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

    async def _hand_out(self, ids: Sequence[str]) -> Answer:
        """Match the ids with a container, plan what it gets, prepare the host, and commit.

        Others are served while the host is prepared. If anything has changed by then, this plans once more, and commits
        only what the host was prepared for.
        """
        devices = self._devices_of(ids)
        identity, excess = await self._match(ids)
        plan = self._plan(ids, identity, excess, devices)
        for _ in range(MAX_PREPARED):
            seen, prepared = self._seen(), plan.assignment
            answer = await self._preparation.answer(prepared)
            if plan.unsure or self._seen() != seen:
                still = self._still(ids, identity)
                plan = self._plan(ids, still, self._overcommitment.excess(ids, still), devices, again=True)
            if plan.assignment == prepared:
                await self._commit(plan)
                return answer
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"the decision for {min(ids)} changed {MAX_PREPARED} times while the host was made ready for it",
            code="UNAVAILABLE",
            hint="delete the pod if its controller does not start another one",
        )

    def _devices_of(
        self, ids: Sequence[str], checked: Mapping[str, DeviceFacts] | None = None
    ) -> Mapping[str, DeviceFacts]:
        """The node's devices, if these are different ids of them. ``RefusedError`` otherwise.

        ``checked`` are devices that the ids were found among before.
        """
        devices = self._devices.now()
        if devices is checked:
            return devices
        if not ids or len(ids) > MAX_IDS or len(set(ids)) != len(ids):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"an Allocate must name 1 to {MAX_IDS} different device ids, this one names {len(ids)}",
                code="INVALID_ARGUMENT",
            )
        for replica in ids:
            uuid = physical_id(replica)
            if uuid not in devices or not is_replica(replica, uuid, devices[uuid].ids):
                raise RefusedError(
                    RefusalReason.UNKNOWN_DEVICE,
                    f"this node has no device {replica[:96]!r}",
                    code="INVALID_ARGUMENT",
                    hint="the kubelet has not taken the newest list yet; delete the pod so that it is tried again",
                )
        return devices

    async def _match(self, ids: Sequence[str]) -> tuple[Identity, TooMuch | None]:
        """Who asks, and what is too much for it. The end of others may come a moment after the decision."""
        if (shares := handed_over(ids, self._ledger.held, self.resource)) and (held := await self._undelivered(shares)):
            return Repeated(held=held), None
        deadline = time.monotonic() + self._wait
        while True:
            seen = self._pods.changes.version
            identity = await self._waiting.identify(ids)
            excess = self._overcommitment.excess(ids, identity)
            left = deadline - time.monotonic()
            if not excess or left <= 0 or self._outdated():
                return identity, excess
            await self._pods.changes.changed(seen, timeout=left)

    async def _undelivered(self, shares: Sequence[Held]) -> Held | None:
        """The share that the kubelet asks for once more, though the next container may have its ids too.

        The kubelet writes each answer down before it asks for the next container. Where its checkpoint cannot be read,
        it is taken to have them all.
        """
        try:
            kept = {(one.uid, one.container, one.ids) for one in await self._checkpoint.kept(self.resource)}
        except HamiError as error:
            log.warning("what the kubelet has is not known", resource=self.resource, problem=error.message)
            return None
        return next((one for one in shares if (one.uid, one.container, one.ids) not in kept), None)

    def _seen(self) -> tuple[object, ...]:
        """All that a decision depends on. While this stays the same, so does the decision."""
        devices, pods = self._devices.now(), self._pods.changes.version
        return (devices, pods, self._ledger.version, self._settlement.failures)

    def _still(self, ids: Sequence[str], identity: Identity) -> Identity:
        """Who asks, as of now. Whoever held these ids when they were asked for is answered, if that is still so."""
        if isinstance(identity, Repeated):
            held = self._ledger.held.get(identity.held.key)
            if held and (held.ids, held.grants) == (identity.held.ids, identity.held.grants):
                return Repeated(held=held)
        return self._waiting.identified(ids)

    def _plan(
        self,
        ids: Sequence[str],
        identity: Identity,
        excess: TooMuch | None,
        checked: Mapping[str, DeviceFacts],
        *,
        again: bool = False,
    ) -> _Plan:
        """Who is to have the ids, and what of each device: these must be here, and have it. Nothing is taken yet."""
        devices = self._devices_of(ids, checked)  # one may have gone since
        match identity:
            case Unknown():
                raise self._refusals.refused(identity.reason, identity.message, identity.pods)
            case Repeated(held=held):
                return self._repeated(held, devices)
            case Unannotated(pod=pod, container=container):
                held = self._granting.whole(ids, pod, container, devices)
            case Found(claim=claim):
                pod, container = claim.pod, claim.container
                held = self._granting.decided(ids, claim, devices)
                if excess:
                    self._overcommitment.refuse(excess, claim, again=again)
        assignment = self._preparation.assigned(held, pod, container, devices)
        return _Plan(held=held, assignment=assignment, unsure=excess is not None)

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

    def _repeated(self, held: Held, devices: Mapping[str, DeviceFacts]) -> _Plan:
        """The same answer once more; everything in it follows from the pod, the container and the grants."""
        pod = self._pods.get(held.uid)
        container = pod.container(held.container) if pod else None
        if pod is None or container is None or pod.phase != "Pending":
            message = f"these devices are held by {held.namespace}/{held.pod}, which is not starting"
            raise self._refusals.refused(RefusalReason.NO_PENDING_POD, message, (pod,) if pod else ())
        assignment = self._preparation.assigned(held, pod, container, devices)
        return _Plan(held=held, assignment=assignment, new=False)


class ResourcePlugin:
    """A ``DevicePlugin``. ``check`` is None when the operator has turned the identity check off."""

    def __init__(self, allocator: Allocator, check: StartCheck | None, snapshot: Watched[Snapshot]) -> None:
        self._allocator = allocator
        self._check = check
        self._snapshot = snapshot
        self.offers: Watched[tuple[Offer, ...]] = Watched(allocator.offers())
        self.allocate, self.prefer = allocator.allocate, allocator.prefer
        self.rendered = asyncio.Event()
        """Set once a snapshot with devices has been rendered."""

    @property
    def resource(self) -> str:
        return self._allocator.resource

    @property
    def question(self) -> Question:
        """How decisions about the resource are read from a pod."""
        return self._allocator.question

    @property
    def pre_start_required(self) -> bool:
        """Always: whoever holds the devices, the host must have what was promised."""
        return True

    async def follow(self) -> None:
        """Render every new snapshot into offers, until the snapshot is closed."""
        async for snapshot in self._snapshot.follow():
            self.offers.set(self._allocator.offers())
            if snapshot.devices:
                self.rendered.set()
        self.offers.close()
        self.rendered.set()

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._allocator.require_host()
        if self._check is not None:
            await self._check.confirm(ids)
        else:
            await self._allocator.afresh(self._allocator.holders(ids))
