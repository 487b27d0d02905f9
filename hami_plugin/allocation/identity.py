"""Who is asking: from the ids of an Allocate to the one container whose limits it may have, or the reason why not.

The kubelet names devices, never a pod. So a pod is accepted only if its node, phase, the count *and* the physical
devices of its next share agree with the ids; two pods with different shares that both fit are refused. Pods come in the
order in which they arrived at this node, which is the order in which the kubelet admits them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import cached_property

from hami_plugin.errors import RefusalReason, WireError
from hami_plugin.model.device import Snapshot, physical_counts, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS
from hami_plugin.protocol.pods import DecidedShare, Question, decided_shares, erase, requesting_containers
from hami_plugin.scheduler.engine.topology import best_linked

Key = tuple[str, str, str]
"""A pod's UID, a container of it, and a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A change of what a container has that is under way. Until it is done, the larger of both counts."""

    before: tuple[Grant, ...]
    after: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """A share that was handed out: to whom, under which ids. ``init`` marks a plain init container, ``undecided`` what
    no scheduler knows of. ``resized``: the grants are not those that the container started with, and it is held to them
    anew after each of its starts.
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
    resized: bool = False
    resize: Resize | None = None

    @property
    def key(self) -> Key:
        return (self.uid, self.container, self.resource)


class HeldShares(Mapping[Key, HeldShare]):
    """Who holds what: the shares by their key, in the order in which they were handed out.

    Each Allocate asks for those of a pod, of a device or of some ids, and takes no longer where more are held.
    """

    def __init__(self, shares: Iterable[HeldShare] = ()) -> None:
        self._by_key: dict[Key, HeldShare] = {}
        self._by_pod: dict[str, tuple[HeldShare, ...]] = {}
        self._by_device: dict[str, dict[Key, HeldShare]] = {}
        self._by_id: dict[tuple[str, str], tuple[HeldShare, ...]] = {}
        self._ids: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for held in shares:
            self.put(held)

    def __getitem__(self, key: Key) -> HeldShare:
        return self._by_key[key]

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def values(self) -> ValuesView[HeldShare]:
        return self._by_key.values()

    @property
    def pods(self) -> Mapping[str, Sequence[HeldShare]]:
        """By the pods' UIDs, what each holds."""
        return self._by_pod

    def of_pod(self, uid: str) -> tuple[HeldShare, ...]:
        """What one pod holds: the same object while it is the same."""
        return self._by_pod.get(uid, ())

    def on(self, uuid: str) -> ValuesView[HeldShare]:
        """The shares of one device."""
        return self._by_device.get(uuid, {}).values()

    def of_ids(self, resource: str, ids: Iterable[str]) -> tuple[HeldShare, ...]:
        """The shares that have any of these ids."""
        found = {held.key: held for one in ids for held in self._by_id.get((resource, one), ())}
        if len(found) < 2:
            return tuple(found.values())
        return tuple(held for key, held in self._by_key.items() if key in found)

    def ids(self, resource: str) -> Mapping[str, int]:
        """By device, how many ids are held; one that several containers have counts once."""
        return self._ids[resource]

    def put(self, held: HeldShare) -> None:
        """Add a share, or change one, which keeps its place."""
        key = held.key
        known = self._by_key.get(key)
        if known is not None and (known.ids, known.grants) != (held.ids, held.grants):
            self._unlist(known)
        self._by_key[key] = held
        of_pod = self._by_pod.get(held.uid)
        self._by_pod[held.uid] = _with(of_pod, held) if of_pod else (held,)
        for grant in held.grants:
            self._by_device.setdefault(grant.uuid, {})[key] = held
        for one in held.ids:
            others = self._by_id.get((held.resource, one), ())
            if not others:
                self._ids[held.resource][physical_id(one)] += 1
            self._by_id[held.resource, one] = _with(others, held) if others else (held,)

    def take(self, key: Key) -> HeldShare | None:
        """Remove a share. None: there was none."""
        held = self._by_key.pop(key, None)
        if held is not None:
            self._unlist(held)
            if left := _without(self._by_pod[held.uid], key):
                self._by_pod[held.uid] = left
            else:
                del self._by_pod[held.uid]
        return held

    def _unlist(self, held: HeldShare) -> None:
        key, counts = held.key, self._ids[held.resource]
        for uuid in {grant.uuid for grant in held.grants}:
            of_device = self._by_device[uuid]
            del of_device[key]
            if not of_device:
                del self._by_device[uuid]
        for one in held.ids:
            if others := _without(self._by_id[held.resource, one], key):
                self._by_id[held.resource, one] = others
            else:
                del self._by_id[held.resource, one]
                uuid = physical_id(one)
                counts[uuid] -= 1
                if not counts[uuid]:
                    del counts[uuid]


def _with(shares: tuple[HeldShare, ...], held: HeldShare) -> tuple[HeldShare, ...]:
    """The shares with this one, in the place of the one with its key."""
    for at, one in enumerate(shares):
        if one.key == held.key:
            return (*shares[:at], held, *shares[at + 1 :])
    return (*shares, held)


def _without(shares: tuple[HeldShare, ...], key: Key) -> tuple[HeldShare, ...]:
    return tuple(one for one in shares if one.key != key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The claim that the ids belong to."""

    claim: DecidedShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The same ids were handed out to a pod that is still starting: the kubelet repeats itself."""

    held: HeldShare


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

    next: tuple[DecidedShare, ...]
    unannotated: tuple[Unannotated, ...]
    unreadable: tuple[Unknown, ...]
    ranks: Mapping[str, int] = field(default_factory=dict)
    instead: Callable[[DecidedShare], Sequence[str]] = lambda _claim: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One version of a pod, its decision or why it cannot be read, and what it waits for with the ``shares`` it has."""

    pod: PodView
    decided: tuple[DecidedShare, ...] | Unknown
    shares: tuple[HeldShare, ...]
    awaits: DecidedShare | Unannotated | Unknown | None


class PodReader:
    """Says what a node's starting pods wait for. Each Allocate asks about all of them.

    So each version of a pod is read once, and looked at again only when it holds something else.
    """

    def __init__(self, question: Question, node: str) -> None:
        self._question = question
        self._node = node
        self._known: dict[str, _Read] = {}

    def pending(self, pods: Sequence[PodView], held: HeldShares, ranks: Mapping[str, int] | None = None) -> Pending:
        """Look at all starting pods, in their order of arrival."""
        following: list[DecidedShare] = []
        unscheduled: list[Unannotated] = []
        unreadable: list[Unknown] = []
        known, self._known = self._known, {}
        for pod in pods:
            if pod.phase != "Pending" or pod.deleted or pod.node != self._node:
                continue
            shares, read = held.of_pod(pod.uid), known.get(pod.uid)
            if read is None or read.pod is not pod:
                read = self._awaiting(pod, self._decided(pod), shares)
            elif read.shares is not shares:
                read = self._awaiting(pod, read.decided, shares)
            self._known[pod.uid] = read
            match read.awaits:
                case None:
                    pass
                case DecidedShare():
                    following.append(read.awaits)
                case Unannotated():
                    unscheduled.append(read.awaits)
                case Unknown():
                    unreadable.append(read.awaits)
        return Pending(
            next=tuple(following), unannotated=tuple(unscheduled), unreadable=tuple(unreadable), ranks=ranks or {}
        )

    def _decided(self, pod: PodView) -> tuple[DecidedShare, ...] | Unknown:
        """The pod's decision; nothing for one without a decision, or whose decision has failed."""
        if self._question.decision not in pod.annotations or pod.annotations.get(BIND_PHASE) == PHASE_FAILED:
            return ()
        if pod.annotations.get(ASSIGNED_NODE, self._node) != self._node:
            message = f"the decision for pod {pod.key} is for another node than {self._node}, where the pod is"
            return Unknown(reason=RefusalReason.BAD_ANNOTATION, message=message, pods=(pod,))
        try:
            return decided_shares(pod, self._question)
        except WireError as error:
            return Unknown(reason=RefusalReason.BAD_ANNOTATION, message=str(error), pods=(pod,))

    def _awaiting(
        self, pod: PodView, decided: tuple[DecidedShare, ...] | Unknown, shares: tuple[HeldShare, ...]
    ) -> _Read:
        """What comes next: the first claim, or the first container without a decision, that has nothing yet."""
        resource = self._question.resource
        served = {one.container for one in shares if one.resource == resource}
        awaits: DecidedShare | Unannotated | Unknown | None
        if isinstance(decided, Unknown):
            awaits = decided
        elif self._question.decision in pod.annotations:
            open_claims = (one for one in decided if one.piece is not None and one.container.name not in served)
            awaits = next(open_claims, None)
        else:
            unserved = (one for one in requesting_containers(pod, resource) if one.name not in served)
            awaits = next((Unannotated(pod=pod, container=one) for one in unserved), None)
        return _Read(pod=pod, decided=decided, shares=shares, awaits=awaits)


def identify(
    ids: Sequence[str],
    waiting: Pending,
    held: HeldShares,
    question: Question,
) -> Identity:
    """Decide who asks for ``ids``."""
    wanted = frozenset(ids)
    owners = held.of_ids(question.resource, ids)
    # A container that outlives its pod's start keeps its ids: no other container of the pod can come with them.
    holder_uids = {owner.uid for owner in owners if not owner.init}
    inheriting = find_reused(owners, waiting) if owners else None
    if inheriting is not None and len(inheriting.devices) == len(ids) and inheriting.pod.uid not in holder_uids:
        return Found(claim=inheriting)
    physical = Counter(map(physical_id, ids))
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


def find_reused(owners: Iterable[HeldShare], waiting: Pending) -> DecidedShare | None:
    """The claim of the pod whose init container is among the ``owners`` of the ids that the kubelet offers.

    The kubelet passes an init container's ids on to a later container of the same pod without asking which ones; nobody
    else can come with them. There the annotation's devices are the truth.
    """
    uids = {owner.uid for owner in owners if owner.init}
    return next((claim for claim in waiting.next if claim.pod.uid in uids), None)


def find_handed_over(ids: Sequence[str], owners: Sequence[HeldShare]) -> tuple[HeldShare, ...]:
    """Of the ``owners``, those of exactly these ids, in their order, where the first is a plain init container's.

    The kubelet may ask for the next container then, or once more for one of these, whose answer has not reached it.
    """
    wanted = frozenset(ids)
    exactly = [owner for owner in owners if owner.ids == wanted]
    of_last = [owner for owner in exactly if owner.uid == exactly[-1].uid]
    return tuple(of_last) if of_last and of_last[0].init else ()


def _first(
    claim: DecidedShare, same_count: Sequence[DecidedShare], ranks: Mapping[str, int], held: HeldShares
) -> Identity:
    """The claim that is first in line, unless another pod may as well be asking.

    A kubelet that starts finds many pods at once, and creation times are in seconds: nothing tells which of them it
    admits first. A pod that has been served in part is in the middle of its admission, and nobody else's turn has come.
    """
    rank = ranks.get(claim.pod.uid)
    if rank is None or held.of_pod(claim.pod.uid):
        return Found(claim=claim)
    tied = [c.pod for c in same_count if c.pod.uid != claim.pod.uid and ranks.get(c.pod.uid) == rank]
    return _unordered([claim.pod, *tied]) if tied else Found(claim=claim)


def _shares(claim: DecidedShare) -> tuple[Grant, ...]:
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


def _kept(owners: Sequence[HeldShare]) -> Unknown:
    names = ", ".join(sorted({f"container {owner.container} of pod {owner.namespace}/{owner.pod}" for owner in owners}))
    return Unknown(
        reason=RefusalReason.DEVICE_MISMATCH, message=f"some of these ids were handed out before, to {names}"
    )


def _nobody(
    ids: Sequence[str], physical: Counter[str], same_count: Sequence[DecidedShare], waiting: Pending
) -> Unknown:
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


def choose_preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    waiting: Pending,
    held: HeldShares,
    resource: str,
    snapshot: Snapshot,
    starting: Sequence[str] = (),
) -> tuple[str, ...]:
    """``size`` of the ``available`` ids, ``must_include`` first; empty when no set of that size exists.

    The next pod in order of arrival whose decision has this size leads. Without one, a pod among ``starting`` (UIDs,
    in order of arrival) that has a share of this size, if the kubelet has lost its answer and takes its ids for free:
    with the same ids it is answered the same. Else the best-linked distinct devices, and those that nobody has a share
    of if there are enough.
    """
    if size <= 0 or len(must_include) > size or len(set(available) | set(must_include)) < size:
        return ()
    inheriting = find_reused(held.of_ids(resource, must_include), waiting)
    for claim in (inheriting,) if inheriting else waiting.next:
        if len(claim.devices) == size:
            decided = _decided(must_include, claim, strict=inheriting is None)
            if ids := _of(decided, available, must_include, size):
                return ids
            if ids := _of(waiting.instead(claim), available, must_include, size):
                return ids
    if not must_include and all(len(claim.devices) != size for claim in waiting.next):
        free = frozenset(available)
        lost = (h for uid in starting for h in held.of_pod(uid) if h.resource == resource and len(h.ids) == size)
        if own := next((h for h in lost if h.ids <= free), None):
            return tuple(sorted(own.ids, key=_place))
    alone = [replica for replica in available if not held.on(physical_id(replica))]
    if len({physical_id(replica) for replica in (*alone, *must_include)}) >= size:
        return _undecided(alone, must_include, size, snapshot)
    return _undecided(available, must_include, size, snapshot)


def _decided(must_include: Sequence[str], claim: DecidedShare, *, strict: bool) -> Sequence[str]:
    """The devices of a decision, in its order, without those of re-used ids. Where ids of other devices are re-used,
    these count as they are, or ``strict``ly for nothing.
    """
    covered = physical_counts(must_include)
    left: list[str] = []
    for uuid in claim.in_order:
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
class AnnotationChanges:
    """``changes`` to the pod's annotations, none if they say so already; ``finished``: nothing is left to hand out."""

    changes: Mapping[str, str]
    finished: bool


def record(pod: PodView, questions: Sequence[Question], held: Mapping[Key, HeldShare]) -> AnnotationChanges:
    """Compare the pod's annotations with what was handed out to it, over all of this node's resources.

    A container's share stays to be read until the kubelet has asked for all resources that it is counted by.
    """
    changes: dict[str, str] = {}
    waiting = decided = 0
    for question in questions:
        if question.decision not in pod.annotations or not requesting_containers(
            pod, question.resource, *question.also
        ):
            continue  # families may share an annotation
        text = changes.get(question.decision, pod.annotations[question.decision])
        try:
            shares = decided_shares(pod, question)
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
    return AnnotationChanges(changes=changes, finished=finished)


class StandIns:
    """Which devices' ids stand for those of a claim that has too few of its own, at one moment.

    ``room`` is how many ids each device has that the kubelet may hand out, and ``others`` are claims that wait too.
    What is free is counted once, and not before the first claim needs it.
    """

    def __init__(
        self,
        question: Question,
        *,
        room: Callable[[], Mapping[str, int]],
        held: HeldShares,
        pods: Iterable[PodView],
        others: Iterable[DecidedShare] = (),
    ) -> None:
        self._question = question
        self._find_room = room
        self._held = held
        self._pods = pods
        self._others = others

    def of(self, claim: DecidedShare) -> tuple[str, ...]:
        """The device behind each id that the claim's container should take beside those that it inherits.

        Empty where its own devices have the ids, and where nothing may stand for them: nothing stands for a device that
        was decided more shares than it has ids.
        """
        if not self._held.of_pod(claim.pod.uid) and all(
            self._free[one] >= len(claim.in_order) for one in claim.in_order
        ):
            return claim.in_order  # as for nearly every pod
        inherited = _inherited(self._of_pod(claim.pod.uid))
        missing = len(claim.devices) - inherited.total()
        if missing <= 0:
            return ()
        own, short = _own(claim, inherited, self._free)
        if len(own) >= missing:
            return tuple(own[:missing])
        shares = {uid: self._of_pod(uid) for uid in self._held.pods}
        granted = _granted(claim.pod.uid, self._question, shares, {pod.uid: pod for pod in self._pods})
        wanted = Counter(claim.devices)
        if any(granted[uuid] + wanted[uuid] > self._room.get(uuid, 0) for uuid in short):
            return ()
        free = Counter(self._free)
        free.subtract(own)
        others = Counter(uuid for other in self._others if other.pod.uid != claim.pod.uid for uuid in other.devices)
        used = Counter(self._held.ids(self._question.resource))
        strange = _left_over(missing - len(own), free, others, Counter(granted), used)
        return (*own, *strange) if len(own) + len(strange) == missing else ()

    @cached_property
    def _room(self) -> Mapping[str, int]:
        return self._find_room()

    @cached_property
    def _free(self) -> Counter[str]:
        used = self._held.ids(self._question.resource)
        return Counter({uuid: count - used.get(uuid, 0) for uuid, count in self._room.items()})

    def _of_pod(self, uid: str) -> Sequence[HeldShare]:
        return [one for one in self._held.of_pod(uid) if one.resource == self._question.resource]


def _inherited(shares: Sequence[HeldShare]) -> Counter[str]:
    """By device, the ids that the kubelet hands on to the next container of the pod that has these."""
    if not shares:
        return Counter()
    early = {taken for share in shares if share.init for taken in share.ids}
    late = {taken for share in shares if not share.init for taken in share.ids}
    return physical_counts(early - late)


def _own(claim: DecidedShare, inherited: Counter[str], free: Counter[str]) -> tuple[list[str], set[str]]:
    """Of the claim's own devices those that have an id for it, and those that have none."""
    left, taken = dict(inherited), dict[str, int]()
    own: list[str] = []
    short: set[str] = set()
    for uuid in claim.in_order:
        if left.get(uuid, 0) > 0:
            left[uuid] -= 1
        elif taken.get(uuid, 0) < free[uuid]:
            taken[uuid] = taken.get(uuid, 0) + 1
            own.append(uuid)
        else:
            short.add(uuid)
    return own, short


def _granted(
    uid: str, question: Question, shares: Mapping[str, Sequence[HeldShare]], pods: Mapping[str, PodView]
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
