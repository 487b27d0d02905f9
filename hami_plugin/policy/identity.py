"""Who is asking: from the ids of an Allocate to the one container whose limits it may have, or the reason why not.

The kubelet names devices, never a pod. So a pod is accepted only if its node, phase, the count *and* the physical
devices of its next share agree with the ids; two pods with different shares that both fit are refused. Pods come in the
order in which they arrived at this node, which is the order in which the kubelet admits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hami_plugin.errors import RefusalReason, WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.policy.replicas import physical_counts
from hami_plugin.protocol.decisions import Claim, Question, Reader, asking, claims
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED


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
class Again:
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


Identity = Found | Again | Unannotated | Unknown


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
    strangers: list[Unannotated] = []
    unreadable: list[Unknown] = []
    for pod in pods:
        if pod.node != node or pod.phase != "Pending" or pod.deleted:
            continue
        if question.decision not in pod.annotations:
            strangers.extend(_next_stranger(pod, held, question))
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
        claim = _next_claim(decided, held, question)
        if claim is not None:
            following.append(claim)
    return Pending(next=tuple(following), unannotated=tuple(strangers), unreadable=tuple(unreadable), ranks=ranks or {})


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
    keepers = {owner.uid for owner in owners if not owner.init}
    heir = reusing(ids, waiting, held, question.resource)
    if heir is not None and len(heir.devices) == len(ids) and heir.pod.uid not in keepers:
        return Found(claim=heir)
    physical = physical_counts(ids)
    uuids = tuple(sorted(physical.elements()))
    same_count = [c for c in waiting.next if len(c.devices) == len(ids) and c.pod.uid not in keepers]
    fitting = [
        claim
        for claim in same_count
        if claim.devices == uuids or (not owners and tuple(sorted(waiting.instead(claim))) == uuids)
    ]
    strangers = [s for s in waiting.unannotated if s.container.amount(question.resource) == len(ids)]
    if fitting:
        if len({_shares(claim) for claim in fitting}) > 1 or strangers:
            return _ambiguous(len(ids), [claim.pod for claim in fitting] + [s.pod for s in strangers])
        return _first(fitting[0], same_count, waiting.ranks, held)
    again = [owner for owner in owners if owner.ids == wanted]
    if again:
        return Again(held=again[-1])  # the latest: an init container's ids have gone to a later one
    if strangers:
        others = [claim.pod for claim in same_count]
        return _ambiguous(len(ids), others + [s.pod for s in strangers]) if others else strangers[0]
    kept = [owner for owner in owners if owner.uid in {claim.pod.uid for claim in waiting.next} & keepers]
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
    """The claim that is first in line, unless another pod may stand in its place."""
    tied = _tied(claim, same_count, ranks, held)
    return _unordered([claim.pod, *tied]) if tied else Found(claim=claim)


def _tied(
    claim: Claim, same_count: Sequence[Claim], ranks: Mapping[str, int], held: Mapping[tuple[str, str, str], Held]
) -> list[PodView]:
    """Pods that may as well be asking, since nothing tells which of them the kubelet admits first.

    A kubelet that starts finds many pods at once, and their creation is told in seconds. A pod that has been served
    in part is in the middle of its admission, and nobody else's turn has come.
    """
    rank = ranks.get(claim.pod.uid)
    if rank is None or any(h.uid == claim.pod.uid for h in held.values()):
        return []
    return [c.pod for c in same_count if c.pod.uid != claim.pod.uid and ranks.get(c.pod.uid) == rank]


def _next_stranger(
    pod: PodView, held: Mapping[tuple[str, str, str], Held], question: Question
) -> tuple[Unannotated, ...]:
    for container in asking(pod, question.resource):
        if (pod.uid, container.name, question.resource) not in held:
            return (Unannotated(pod=pod, container=container),)
    return ()


def _next_claim(
    decided: Sequence[Claim], held: Mapping[tuple[str, str, str], Held], question: Question
) -> Claim | None:
    for claim in decided:
        if claim.piece is not None and (claim.pod.uid, claim.container.name, question.resource) not in held:
            return claim
    return None


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
