"""Who is asking: from the ids of an Allocate to the one container whose limits it may have, or the reason why not.

The kubelet names devices, never a pod. So a pod is accepted only if its node, phase, the count *and* the physical
devices of its next share agree with the ids; two pods with different shares that both fit are refused. Pods come in the
order in which they arrived at this node, which is the order in which the kubelet admits them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hami_plugin.errors import RefusalReason, WireError
from hami_plugin.model.device import Snapshot, physical_counts, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.decisions import Claim, Question, Reader, asking, claims, erase
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS
from hami_plugin.scheduler.engine.topology import best_linked


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A share that was handed out: to whom, under which ids. ``init`` marks a plain init container, ``undecided`` what
    no scheduler knows of.
    """

    uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    grants: tuple[Grant, ...]
    init: bool = False
    settled: bool = False
    undecided: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.uid, self.container, self.resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The claim that the ids belong to."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The same ids were handed out to a pod that is still starting: the kubelet repeats itself."""

    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Unannotated:
    """A pod that no HAMi scheduler decided about, and its next container that asks."""

    pod: PodView
    container: ContainerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody, or nobody for sure. ``pods`` are those that the reason is about."""

    reason: RefusalReason
    message: str
    pods: tuple[PodView, ...] = ()


Identity = Found | Repeated | Unannotated | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What this node's starting pods wait for: the next claim of each, those without a decision, those unreadable.

    ``ranks`` orders the pods by UID; pods of one rank may be admitted in any order. ``instead`` says which devices' ids
    stand for those of a claim that has too few of its own; empty where none do.
    """

    next: tuple[Claim, ...]
    unannotated: tuple[Unannotated, ...]
    unreadable: tuple[Unknown, ...]
    ranks: Mapping[str, int] = field(default_factory=dict)
    instead: Callable[[Claim], Sequence[str]] = lambda _claim: ()


def pending(
    pods: Sequence[PodView],
    held: Mapping[tuple[str, str, str], Held],
    question: Question,
    node: str,
    *,
    read: Reader = claims,
    ranks: Mapping[str, int] | None = None,
) -> Pending:
    """Look at all starting pods, in their order of arrival."""
    following: list[Claim] = []
    unscheduled: list[Unannotated] = []
    unreadable: list[Unknown] = []
    for pod in pods:
        if pod.node != node or pod.phase != "Pending" or pod.deleted:
            continue
        if question.decision not in pod.annotations:
            unscheduled.extend(_next_unscheduled(pod, held, question))
            continue
        if pod.annotations.get(BIND_PHASE) == PHASE_FAILED:
            continue
        if pod.annotations.get(ASSIGNED_NODE, node) != node:
            message = f"the decision for pod {pod.key} is for another node than {node}, where the pod is"
            unreadable.append(Unknown(reason=RefusalReason.BAD_ANNOTATION, message=message, pods=(pod,)))
            continue
        try:
            decided = read(pod, question)
        except WireError as error:
            unreadable.append(Unknown(reason=RefusalReason.BAD_ANNOTATION, message=str(error), pods=(pod,)))
            continue
        for claim in decided:
            if claim.piece is not None and (pod.uid, claim.container.name, question.resource) not in held:
                following.append(claim)
                break
    return Pending(
        next=tuple(following), unannotated=tuple(unscheduled), unreadable=tuple(unreadable), ranks=ranks or {}
    )


def identify(
    ids: Sequence[str],
    waiting: Pending,
    held: Mapping[tuple[str, str, str], Held],
    question: Question,
) -> Identity:
    """Decide who asks for ``ids``."""
    wanted = frozenset(ids)
    owners = [h for h in held.values() if h.resource == question.resource and h.ids & wanted]
    # A container that outlives its pod's start keeps its ids: no other container of the pod can come with them.
    holder_uids = {owner.uid for owner in owners if not owner.init}
    inheriting = reusing(ids, waiting, held, question.resource) if owners else None
    if inheriting is not None and len(inheriting.devices) == len(ids) and inheriting.pod.uid not in holder_uids:
        return Found(claim=inheriting)
    physical = physical_counts(ids)
    uuids = tuple(sorted(physical.elements()))
    same_count = [c for c in waiting.next if len(c.devices) == len(ids) and c.pod.uid not in holder_uids]
    fitting = [
        claim
        for claim in same_count
        if claim.devices == uuids or (not owners and tuple(sorted(waiting.instead(claim))) == uuids)
    ]
    unscheduled = [s for s in waiting.unannotated if s.container.amount(question.resource) == len(ids)]
    if fitting:
        differ = len(fitting) > 1 and len({_shares(claim) for claim in fitting}) > 1
        if differ or unscheduled:
            return _ambiguous(len(ids), [claim.pod for claim in fitting] + [s.pod for s in unscheduled])
        return _first(fitting[0], same_count, waiting.ranks, held)
    again = [owner for owner in owners if owner.ids == wanted]
    if again:
        return Repeated(held=again[-1])  # the latest: an init container's ids have gone to a later one
    if unscheduled:
        others = [claim.pod for claim in same_count]
        return _ambiguous(len(ids), others + [s.pod for s in unscheduled]) if others else unscheduled[0]
    kept = [owner for owner in owners if owner.uid in {claim.pod.uid for claim in waiting.next} & holder_uids]
    return _kept(kept) if kept else _nobody(ids, physical, same_count, waiting)


def reusing(
    ids: Sequence[str], waiting: Pending, held: Mapping[tuple[str, str, str], Held], resource: str
) -> Claim | None:
    """The claim of the pod whose init container holds some of ``ids``.

    The kubelet passes an init container's ids on to a later container of the same pod without asking which ones; nobody
    else can come with them. There the annotation's devices are the truth.
    """
    wanted = frozenset(ids)
    owners = {h.uid for h in held.values() if h.init and h.resource == resource and h.ids & wanted}
    return next((claim for claim in waiting.next if claim.pod.uid in owners), None)


def handed_over(ids: Sequence[str], held: Mapping[tuple[str, str, str], Held], resource: str) -> tuple[Held, ...]:
    """The shares under exactly these ids, in their order, where the first is a plain init container's.

    The kubelet may ask for the next container then, or once more for one of these, whose answer has not reached it.
    """
    wanted = frozenset(ids)
    owners = [h for h in held.values() if h.resource == resource and h.ids == wanted]
    owners = [owner for owner in owners if owner.uid == owners[-1].uid]
    return tuple(owners) if owners and owners[0].init else ()


def _first(
    claim: Claim, same_count: Sequence[Claim], ranks: Mapping[str, int], held: Mapping[tuple[str, str, str], Held]
) -> Identity:
    """The claim that is first in line, unless another pod may as well be asking.

    A kubelet that starts finds many pods at once, and creation times are in seconds: nothing tells which of them it
    admits first. A pod that has been served in part is in the middle of its admission, and nobody else's turn has come.
    """
    rank = ranks.get(claim.pod.uid)
    if rank is None or any(h.uid == claim.pod.uid for h in held.values()):
        return Found(claim=claim)
    tied = [c.pod for c in same_count if c.pod.uid != claim.pod.uid and ranks.get(c.pod.uid) == rank]
    return _unordered([claim.pod, *tied]) if tied else Found(claim=claim)


def _next_unscheduled(
    pod: PodView, held: Mapping[tuple[str, str, str], Held], question: Question
) -> tuple[Unannotated, ...]:
    for container in asking(pod, question.resource):
        if (pod.uid, container.name, question.resource) not in held:
            return (Unannotated(pod=pod, container=container),)
    return ()


def _shares(claim: Claim) -> tuple[Grant, ...]:
    return tuple(sorted(claim.grants, key=lambda grant: (grant.uuid, grant.memory, grant.cores)))


def _ambiguous(count: int, pods: Sequence[PodView]) -> Unknown:
    names = ", ".join(pod.key for pod in pods)
    return Unknown(
        reason=RefusalReason.AMBIGUOUS,
        message=f"{len(pods)} pods with different shares wait for {count} of these devices: {names}",
        pods=tuple(pods),
    )


def _unordered(pods: Sequence[PodView]) -> Unknown:
    names = ", ".join(pod.key for pod in pods)
    return Unknown(
        reason=RefusalReason.AMBIGUOUS,
        message=f"{len(pods)} pods were found together, created in the same second, and any may be asking: {names}",
        pods=tuple(pods),
    )


def _kept(owners: Sequence[Held]) -> Unknown:
    names = ", ".join(sorted({f"container {owner.container} of pod {owner.namespace}/{owner.pod}" for owner in owners}))
    return Unknown(
        reason=RefusalReason.DEVICE_MISMATCH, message=f"some of these ids were handed out before, to {names}"
    )


def _nobody(ids: Sequence[str], physical: Counter[str], same_count: Sequence[Claim], waiting: Pending) -> Unknown:
    got = ", ".join(sorted(physical))
    if same_count:
        wanted = "; ".join(f"{c.pod.key} waits for {', '.join(c.devices)}" for c in same_count)
        return Unknown(
            reason=RefusalReason.DEVICE_MISMATCH,
            message=f"the kubelet offers {got}, but {wanted}",
            pods=tuple(claim.pod for claim in same_count),
        )
    if waiting.unreadable:
        return waiting.unreadable[0]
    if waiting.next:
        wanted = "; ".join(f"{c.pod.key} waits for {len(c.devices)}" for c in waiting.next)
        return Unknown(
            reason=RefusalReason.COUNT_MISMATCH,
            message=f"the kubelet offers {len(ids)} devices, but {wanted}",
            pods=tuple(claim.pod for claim in waiting.next),
        )
    return Unknown(
        reason=RefusalReason.NO_PENDING_POD,
        message=f"no pod on this node waits for devices (offered: {got})",
    )


def preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    waiting: Pending,
    held: Mapping[tuple[str, str, str], Held],
    resource: str,
    snapshot: Snapshot,
) -> tuple[str, ...]:
    """``size`` of the ``available`` ids, ``must_include`` first; empty when no set of that size exists.

    The next pod in order of arrival whose decision has this size leads. Without one, the best-linked distinct devices,
    and those that nobody has a share of if there are enough.
    """
    if size <= 0 or len(must_include) > size or len(set(available) | set(must_include)) < size:
        return ()
    inheriting = reusing(must_include, waiting, held, resource) if must_include else None
    for claim in (inheriting,) if inheriting else waiting.next:
        if len(claim.devices) == size:
            decided = _decided(must_include, claim, strict=inheriting is None)
            if ids := _of(decided, available, must_include, size):
                return ids
            if ids := _of(waiting.instead(claim), available, must_include, size):
                return ids
    shared = {grant.uuid for share in held.values() for grant in share.grants}
    alone = [replica for replica in available if physical_id(replica) not in shared]
    if len({physical_id(replica) for replica in (*alone, *must_include)}) >= size:
        return _undecided(alone, must_include, size, snapshot)
    return _undecided(available, must_include, size, snapshot)


def _decided(must_include: Sequence[str], claim: Claim, *, strict: bool) -> Sequence[str]:
    """The devices of a decision, in its order, without those of re-used ids. Where ids of other devices are re-used,
    these count as they are, or ``strict``ly for nothing.
    """
    covered = physical_counts(must_include)
    left: list[str] = []
    for uuid in (grant.uuid for grant in claim.grants for _ in range(claim.ids(grant))):
        if covered[uuid] > 0:
            covered[uuid] -= 1
        else:
            left.append(uuid)
    return () if strict and covered.total() else left


def _of(devices: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
    """``size`` ids: beside those that must be one of each of these devices, while more are needed."""
    chosen = list(must_include)
    for uuid in devices[: size - len(chosen)]:
        # Of a thousand ids few are of this device, and those alone are worth more than a comparison.
        free = [one for one in available if one.startswith(uuid) and physical_id(one) == uuid and one not in chosen]
        if not free:
            return ()
        chosen.append(min(free, key=_place))
    return tuple(chosen) if len(chosen) == size else ()


def _undecided(available: Sequence[str], must_include: Sequence[str], size: int, snapshot: Snapshot) -> tuple[str, ...]:
    """Distinct devices that are linked best; a second id of one device only when there are not enough devices."""
    chosen = list(must_include)
    free: dict[str, list[str]] = {}
    for replica in _in_order(available):
        if replica not in chosen:
            free.setdefault(physical_id(replica), []).append(replica)
    taken = list(dict.fromkeys(physical_id(replica) for replica in chosen))
    order = [device.uuid for device in snapshot.devices if device.uuid in free or device.uuid in taken]
    count = min(len(order), len(taken) + size - len(chosen))
    required = [uuid for uuid in taken if uuid in order]
    for uuid in best_linked(order, count, snapshot.links, required=required) if count else ():
        if uuid not in taken and len(chosen) < size:
            chosen.append(free[uuid].pop(0))
    rest = [replica for replicas in free.values() for replica in replicas]
    chosen.extend(rest[: size - len(chosen)])
    return tuple(chosen)


def _in_order(ids: Sequence[str]) -> list[str]:
    return sorted(ids, key=_place)


def _place(replica: str) -> tuple[str, int, str]:
    """By device, then by share number as a number."""
    uuid = physical_id(replica)
    number = replica[len(uuid) :].lstrip("-:")
    return (uuid, int(number) if number.isdecimal() else 0, replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``changes`` to the pod's annotations, none if they say so already; ``finished``: nothing is left to hand out."""

    changes: Mapping[str, str]
    finished: bool


def record(pod: PodView, questions: Sequence[Question], held: Mapping[tuple[str, str, str], Held]) -> Record:
    """Compare the pod's annotations with what was handed out to it, over all of this node's resources.

    A container's share stays to be read until the kubelet has asked for all resources that it is counted by.
    """
    changes: dict[str, str] = {}
    waiting = decided = 0
    for question in questions:
        if question.decision not in pod.annotations or not asking(pod, question.resource, *question.also):
            continue  # families may share an annotation
        text = changes.get(question.decision, pod.annotations[question.decision])
        try:
            shares = claims(pod, question)
        except WireError:
            waiting += 1
            continue
        for claim in shares:
            decided += 1
            if claim.piece is None:
                continue
            counted = (one for one in (question.resource, *question.also) if claim.container.amount(one) > 0)
            if all((pod.uid, claim.container.name, one) in held for one in counted):
                text = erase(text, claim.piece)
            else:
                waiting += 1
        if question.to_allocate and text != pod.annotations[question.to_allocate]:
            changes[question.to_allocate] = text
    finished = decided > 0 and waiting == 0
    if finished and pod.annotations.get(BIND_PHASE) != PHASE_SUCCESS:
        changes[BIND_PHASE] = PHASE_SUCCESS
    return Record(changes=changes, finished=finished)


class StandIns:
    """Which devices' ids stand for those of a claim that has too few of its own, at one moment.

    ``room`` is how many ids each device has that the kubelet may hand out; ``held`` come in the order in which they
    were handed out, and ``others`` wait too. Each is looked at once, and not before the first claim needs it.
    ``device_of`` gives an id's device.
    """

    def __init__(
        self,
        question: Question,
        *,
        room: Callable[[], Mapping[str, int]],
        held: Iterable[Held],
        pods: Iterable[PodView],
        others: Iterable[Claim] = (),
        device_of: Callable[[str], str] = physical_id,
    ) -> None:
        self._question = question
        self._find_room = room
        self._held = held
        self._pods = pods
        self._others = others
        self._device_of = device_of

    def of(self, claim: Claim) -> tuple[str, ...]:
        """The device behind each id that the claim's container should take beside those that it inherits.

        Empty where its own devices have the ids, and where nothing may stand for them: nothing stands for a device that
        was decided more shares than it has ids.
        """
        inherited = _inherited(self._shares.get(claim.pod.uid, ()))
        missing = len(claim.devices) - inherited.total()
        if missing <= 0:
            return ()
        own, short = _own(claim, inherited, self._free)
        if len(own) >= missing:
            return tuple(own[:missing])
        granted = _granted(claim.pod.uid, self._question, self._shares, {pod.uid: pod for pod in self._pods})
        wanted = Counter(claim.devices)
        if any(granted[uuid] + wanted[uuid] > self._room.get(uuid, 0) for uuid in short):
            return ()
        free = Counter(self._free)
        free.subtract(own)
        others = Counter(uuid for other in self._others if other.pod.uid != claim.pod.uid for uuid in other.devices)
        strange = _left_over(missing - len(own), free, others, Counter(granted), self._used)
        return (*own, *strange) if len(own) + len(strange) == missing else ()

    @cached_property
    def _room(self) -> Mapping[str, int]:
        return self._find_room()

    @cached_property
    def _shares(self) -> Mapping[str, Sequence[Held]]:
        """By the UID of their pod."""
        shares: defaultdict[str, list[Held]] = defaultdict(list)
        for one in self._held:
            if one.resource == self._question.resource:
                shares[one.uid].append(one)
        return shares

    @cached_property
    def _used(self) -> Counter[str]:
        return Counter(
            map(self._device_of, {taken for its in self._shares.values() for one in its for taken in one.ids})
        )

    @cached_property
    def _free(self) -> Counter[str]:
        return Counter({uuid: count - self._used[uuid] for uuid, count in self._room.items()})


def _inherited(shares: Sequence[Held]) -> Counter[str]:
    """By device, the ids that the kubelet hands on to the next container of the pod that has these."""
    if not shares:
        return Counter()
    early = {taken for share in shares if share.init for taken in share.ids}
    late = {taken for share in shares if not share.init for taken in share.ids}
    return physical_counts(early - late)


def _own(claim: Claim, inherited: Counter[str], free: Counter[str]) -> tuple[list[str], set[str]]:
    """Of the claim's own devices those that have an id for it, and those that have none."""
    left, taken = dict(inherited), dict[str, int]()
    own: list[str] = []
    short: set[str] = set()
    for uuid in (grant.uuid for grant in claim.grants for _ in range(claim.ids(grant))):
        if left.get(uuid, 0) > 0:
            left[uuid] -= 1
        elif taken.get(uuid, 0) < free[uuid]:
            taken[uuid] = taken.get(uuid, 0) + 1
            own.append(uuid)
        else:
            short.add(uuid)
    return own, short


def _granted(
    uid: str, question: Question, shares: Mapping[str, Sequence[Held]], pods: Mapping[str, PodView]
) -> Counter[str]:
    """By device, the ids' worth of what others have, and of what runs beside the next container of the pod ``uid``."""
    total: Counter[str] = Counter()
    for owner, its in shares.items():
        running, peak = Counter[str](), Counter[str]()
        for share in its:
            if share.undecided:
                worth = physical_counts(share.ids)
            else:
                worth = Counter(grant.uuid for grant in share.grants for _ in range(question.ids(grant)))
            if share.init:
                peak |= running + worth
            else:
                running += worth
        pod = pods.get(owner)
        over = owner == uid or (pod is not None and pod.phase == "Running")
        total += running if over else running | peak
    return total


def _left_over(
    count: int, free: Counter[str], others: Counter[str], granted: Counter[str], used: Counter[str]
) -> list[str]:
    """Devices of so many free ids: of those that were decided more shares than ids were taken of them before others,
    and of those that nobody else waits for before all.
    """
    lent, spare = granted - used, Counter(free)
    chosen: list[str] = []
    for _ in range(count):
        uuid = max(spare, key=lambda one: (spare[one] > 0, spare[one] > others[one], lent[one]), default="")
        if spare[uuid] <= 0:
            break
        spare[uuid] -= 1
        lent[uuid] -= 1
        chosen.append(uuid)
    return chosen
