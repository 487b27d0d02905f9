"""One resource's answers to the kubelet: which ids it should take, what a container receives, who really holds it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cdi.edits import ContainerEdits
from hami_plugin.aio import Watched
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.files import make_shared_directory, write_shared
from hami_plugin.host.paths import HostFiles
from hami_plugin.log import logger
from hami_plugin.model.delivery import Answer, Way
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import Observer, Offer
from hami_plugin.node.settlement import Settlement
from hami_plugin.policy.answers import answered
from hami_plugin.policy.claims import Claim, Question, ReadOnce, excess
from hami_plugin.policy.identity import Again, Found, Held, Identity, Pending, Unannotated, Unknown, identify, pending
from hami_plugin.policy.preferred import preferred
from hami_plugin.policy.replicas import is_replica, physical_id, replica_ids
from hami_plugin.vendor import Family, Units

log = logger(__name__)

MOST_IDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """What the operator decided. ``wait`` is in seconds."""

    node: str
    wait: float = 2.0
    serve_unannotated: bool = False


def question_of(family: Family, units: Units | None = None) -> Question:
    """How a family's decisions are read from a pod: about whole devices or shares of them, or about ``units``."""
    names = family.resources
    counted = (names.count, *(one.resource for one in family.units))
    resource = units.resource if units else names.count
    return Question(
        resource=resource,
        to_allocate=family.annotations.to_allocate,
        allocated=family.annotations.allocated,
        memory=names.memory,
        memory_percent=names.memory_percent,
        cores="" if family.cores_are_bits or family.cores_are_counted else names.cores,
        memory_factor=family.memory_factor,
        also=tuple(name for name in counted if name != resource),
        ids=units.of_grant if units else family.ids,
        lock=family.lock.annotation if family.lock and not family.lock.named else "",
    )


class Allocator:
    """Decides and hands out for one family. Everything between two awaits happens at once, so no two can collide."""

    def __init__(
        self,
        family: Family,
        *,
        snapshot: Watched[Snapshot],
        pods: PodTable,
        ledger: Ledger,
        settlement: Settlement,
        events: EventRecorder,
        host: HostFiles,
        rules: AllocationRules,
        observer: Observer,
        units: Units | None = None,
    ) -> None:
        self.question = question_of(family, units)
        self.resource = self.question.resource
        self._family = family
        self._replicas = units.of_device if units else family.replicas
        self._snapshot = snapshot
        self._pods = pods
        self._ledger = ledger
        self._settlement = settlement
        self._events = events
        self._host = host
        self._rules = rules
        self._observer = observer
        self._read = ReadOnce()

    def offers(self) -> tuple[Offer, ...]:
        """Every share of every device, sorted by device index; all shares of a device share its health."""
        return tuple(
            Offer(
                id=replica,
                healthy=device.health.offered,
                numa=device.numa if self._family.numa_hints else None,
            )
            for device in self._snapshot.value.devices
            for replica in replica_ids(device.uuid, self._replicas(device))
        )

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """What the kubelet should choose. An empty answer leaves the choice to it.

        The kubelet may be ahead of our watch, and its choice without a decision would not fit the decision: so this
        waits for somebody who asks for this many, as long as Allocate would.
        """
        deadline = time.monotonic() + self._rules.wait
        while not self._awaited(size) and (left := deadline - time.monotonic()) > 0:
            await self._pods.changes.changed(self._pods.changes.version, timeout=left)
        return preferred(
            available,
            must_include,
            size,
            waiting=self._waiting(),
            held=self._ledger.held,
            resource=self.resource,
            snapshot=self._snapshot.value,
        )

    def _awaited(self, size: int) -> bool:
        """Whether a pod that is known here waits for ``size`` devices, with a decision or without."""
        waiting = self._waiting()
        return any(len(claim.devices) == size for claim in waiting.next) or any(
            stranger.container.amount(self.resource) == size for stranger in waiting.unannotated
        )

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Hand out what the container that asks may have. ``RefusedError`` with the reason otherwise."""
        start = time.perf_counter()
        outcome = "failed"
        try:
            self._check_ids(ids)
            identity = await self._identify(ids)
            self._check_ids(ids)  # a device may have gone while we waited
            answer = self._hand_out(ids, identity)
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("allocate refused", resource=self.resource, reason=refusal.reason, why=refusal.message)
            raise
        finally:
            self._observer.allocation(self.resource, outcome, time.perf_counter() - start)
        return answer

    def require_host(self) -> None:
        """``RefusedError`` while the host lacks what containers were promised; the kubelet will ask again.

        A runtime need not miss a mount's source: containerd makes an empty directory of it, and the container would run
        without limits.
        """
        problem = self._family.host_problem(self._host)
        if problem:
            log.warning("container start refused", resource=self.resource, why=problem)
            self._observer.container_start(self.resource, RefusalReason.NOT_PREPARED)
            raise RefusedError(
                RefusalReason.NOT_PREPARED, problem, code="UNAVAILABLE", hint="the kubelet tries again by itself"
            )

    def _waiting(self) -> Pending:
        pods = [pod for pod in self._pods.pods if not self._settlement.failed(pod.uid)]
        self._read.keep(pods)
        return pending(
            pods, self._ledger.held, self.question, self._rules.node, read=self._read, ranks=self._pods.ranks
        )

    def _check_ids(self, ids: Sequence[str]) -> None:
        if not ids or len(ids) > MOST_IDS or len(set(ids)) != len(ids):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"an Allocate must name 1 to {MOST_IDS} different device ids, this one names {len(ids)}",
                code="INVALID_ARGUMENT",
            )
        for replica in ids:
            device = self._snapshot.value.device(physical_id(replica))
            if device is None or not is_replica(replica, device.uuid, self._replicas(device)):
                raise RefusedError(
                    RefusalReason.UNKNOWN_DEVICE,
                    f"this node has no device {replica[:96]!r}",
                    code="INVALID_ARGUMENT",
                    hint="the kubelet has not taken the newest list yet; delete the pod so that it is tried again",
                )

    async def _identify(self, ids: Sequence[str]) -> Identity:
        """Find out who asks, and give the decision a moment to arrive: the kubelet may be ahead of our watch."""
        deadline = time.monotonic() + self._rules.wait
        while True:
            seen = self._pods.changes.version
            identity = identify(ids, self._waiting(), self._ledger.held, self.question)
            left = deadline - time.monotonic()
            if isinstance(identity, Found | Again) or left <= 0:
                return identity
            if isinstance(identity, Unknown) and identity.reason is RefusalReason.AMBIGUOUS:
                return identity
            await self._pods.changes.changed(seen, timeout=left)

    def _hand_out(self, ids: Sequence[str], identity: Identity) -> Answer:
        match identity:
            case Unknown():
                raise self._refused(identity.reason, identity.message, identity.pods)
            case Again(held=held):
                return self._repeat(held)
            case Unannotated(pod=pod, container=container):
                grants = self._whole_devices(ids, pod)
                return self._grant(ids, pod, container, grants)
            case Found(claim=claim):
                self._check_claim(claim)
                return self._grant(ids, claim.pod, claim.container, claim.grants)

    def _check_claim(self, claim: Claim) -> None:
        granted = tuple(filter(None, (self._snapshot.value.device(grant.uuid) for grant in claim.grants)))
        advertised = {device.uuid: self._family.register(device, False).devmem for device in granted}
        every_core = {device.uuid: self._family.every_core(device) for device in granted}
        too_much = excess(claim, self.question, advertised, every_core)
        if too_much:
            raise self._failed(RefusalReason.EXCEEDS_REQUEST, f"the decision grants {too_much}", claim.pod)

    def _whole_devices(self, ids: Sequence[str], pod: PodView) -> tuple[Grant, ...]:
        """For a pod without a decision: the kubelet's devices as they are, if nobody else has a share of them."""
        if not self._rules.serve_unannotated:
            raise self._refused(
                RefusalReason.NOT_SCHEDULED,
                f"pod {pod.key} asks for {self.resource}, but {pod.scheduler or 'its scheduler'} decided nothing",
                (pod,),
                hint="let HAMi's scheduler place it, or set unannotatedPods: serve",
            )
        uuids = list(dict.fromkeys(physical_id(replica) for replica in ids))
        taken = {g.uuid: h for h in self._ledger.held.values() if h.uid != pod.uid for g in h.grants}
        shared = [uuid for uuid in uuids if uuid in taken]
        if len(uuids) < len(ids) or shared:
            what = (
                f"{shared[0]} is shared by {taken[shared[0]].namespace}/{taken[shared[0]].pod}"
                if shared
                else (f"{len(ids)} shares of {len(uuids)} devices")
            )
            raise self._refused(
                RefusalReason.DEVICE_SHARED, f"pod {pod.key} can only have whole devices, but got {what}", (pod,)
            )
        devices = {device.uuid: device for device in self._snapshot.value.devices}
        return tuple(
            Grant(
                uuid=uuid,
                word=self._family.word,
                memory=self._family.register(devices[uuid], False).devmem,
                cores=self._family.every_core(devices[uuid]),
            )
            for uuid in uuids
        )

    def _grant(self, ids: Sequence[str], pod: PodView, container: ContainerView, grants: Sequence[Grant]) -> Answer:
        held = Held(
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            resource=self.resource,
            ids=frozenset(ids),
            grants=tuple(self._placed(grant) for grant in grants),
            init=container.init and not container.restartable,
        )
        shares = self._shares(held, pod)
        answer = self._inject(Assignment(pod=pod, container=container, shares=shares))
        self._ledger.reserve(held)
        try:
            self._ledger.write(held)
        except OSError as error:
            self._ledger.drop([held.key])
            raise self._unprepared(pod, container, error) from error
        self._settlement.note(pod.uid)
        log.info(
            "allocated",
            pod=pod.key,
            container=container.name,
            resource=self.resource,
            devices=[share.device.uuid for share in shares],
        )
        return answer

    def _placed(self, grant: Grant) -> Grant:
        """Beside what all others hold of the same device. The journal keeps it, so that it is the same ever after."""
        device = self._snapshot.value.device(grant.uuid)
        others = [one for held in self._ledger.held.values() for one in held.grants if one.uuid == grant.uuid]
        return self._family.place(grant, device, others) if device else grant

    def _repeat(self, held: Held) -> Answer:
        """The same answer once more; everything in it follows from the pod, the container and the grants."""
        pod = self._pods.get(held.uid)
        container = pod.container(held.container) if pod else None
        if pod is None or container is None or pod.phase != "Pending":
            message = f"these devices are held by {held.namespace}/{held.pod}, which is not starting"
            raise self._refused(RefusalReason.NO_PENDING_POD, message, (pod,) if pod else ())
        answer = self._inject(Assignment(pod=pod, container=container, shares=self._shares(held, pod)))
        self._settlement.note(pod.uid)
        return answer

    def _shares(self, held: Held, pod: PodView) -> tuple[Share, ...]:
        """Each grant beside its device, in device order: the order in which the container will number them."""
        shares: list[Share] = []
        for grant in held.grants:
            device = self._snapshot.value.device(grant.uuid)
            if device is None:
                message = f"the decision for pod {pod.key} names {grant.uuid}, which is not on this node"
                raise self._failed(RefusalReason.UNKNOWN_DEVICE, message, pod)
            if not device.health.offered:
                message = (
                    f"{grant.uuid} for pod {pod.key} is {device.health}: {device.reason} {device.message}".rstrip()
                )
                raise self._failed(RefusalReason.UNHEALTHY_DEVICE, message, pod)
            shares.append(Share(grant=grant, device=device))
        return tuple(sorted(shares, key=lambda share: (share.device.index, share.device.uuid)))

    def _inject(self, assignment: Assignment) -> Answer:
        """What the container receives, with the host made ready for it."""
        try:
            injection = self._family.inject(assignment, self._host)
            answer = answered(self._family.delivery, assignment, injection.edits, self._described(assignment))
            for directory in injection.directories:
                make_shared_directory(self._host.writable(directory))
            for path, text in injection.files.items():
                write_shared(self._host.writable(path), text)
        except OSError as error:
            raise self._unprepared(assignment.pod, assignment.container, error) from error
        except RefusedError as refusal:
            told = self._failed(refusal.reason, refusal.message, assignment.pod, code=refusal.code, hint=refusal.hint)
            raise told from refusal
        except HamiError as error:  # a device that cannot be described, as its node has gone
            raise self._unprepared(assignment.pod, assignment.container, error) from error
        return answer

    def _described(self, assignment: Assignment) -> ContainerEdits:
        """What a runtime would find in CDI specs, for the answer that must carry it itself."""
        if Way.DEVICE_SPECS not in self._family.delivery.ways:
            return ContainerEdits()
        devices = (self._family.device_edits(share.device, self._host) for share in assignment.shares)
        return self._family.shared_edits(self._host).merged(*devices)

    def _unprepared(self, pod: PodView, container: ContainerView, error: OSError | HamiError) -> RefusedError:
        message = f"the host could not be prepared for container {container.name} of pod {pod.key}: {error}"
        return self._failed(RefusalReason.NOT_PREPARED, message, pod)

    def _failed(
        self, reason: RefusalReason, message: str, pod: PodView, *, code: str = "FAILED_PRECONDITION", hint: str = ""
    ) -> RefusedError:
        """As ``_refused``, for the one pod that has asked: its decision cannot be carried out, which it will tell."""
        self._settlement.fail(pod)
        return self._refused(reason, message, (pod,), code=code, hint=hint)

    def _refused(
        self,
        reason: RefusalReason,
        message: str,
        pods: Sequence[PodView],
        *,
        code: str = "FAILED_PRECONDITION",
        hint: str = "",
    ) -> RefusedError:
        """The error for the kubelet, and an Event at every pod that it is about."""
        refusal = RefusedError(reason, message, code=code, hint=hint)
        self._events.refused(pods, reason, str(refusal))
        return refusal
