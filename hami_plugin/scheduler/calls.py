"""The kinds of calls that are answered: where, how large, how long, and in which words each says that it failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from hami_plugin.config.scheduler import SchedulerSettings
from hami_plugin.scheduler.bodies import Budget
from hami_plugin.scheduler.ports import Extender
from hami_plugin.scheduling.payloads import Json, mapping

MIB = 1 << 20

OPEN_PART = 4
"""What anybody may send has a quarter of the room for requests: kube-scheduler's always find some."""
_BY_NAME = (
    "set nodeCacheCapable: true in the extender's stanza, so that nodes are sent by name, or raise filterMebibytes"
)

ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take: bytes of its body, seconds until that has arrived, seconds until it is answered, and how
    many are answered at once; those above it wait. ``budget`` is for the bodies of all that are read, wait or are
    answered. ``remedy`` is what to do about a body that is too large.
    """

    body: int
    read_s: float
    answer_s: float
    at_once: int
    budget: Budget
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One path. ``local``: only callers on this host are served. ``certified``: only those that show a certificate of
    the webhook's authority, with one of ``names`` if there are any. ``refusing`` tells whether an answer says no.

    ``failure`` is the answer that itself says why there is none, where the protocol has one; else an HTTP status does.
    """

    path: str
    answer: Callable[[Json], Awaitable[Json]]
    limits: Limits
    refusing: Callable[[Json], bool]
    local: bool = False
    certified: bool = False
    names: Collection[str] = ()
    failure: Callable[[str], Json] | None = None


def kinds(extender: Extender, settings: SchedulerSettings) -> tuple[Kind, ...]:
    """The three calls of HAMi's scheduler, under HAMi's paths."""
    local = settings.extender_peers == "loopback"
    read_s, answer_s = settings.read_seconds, settings.answer_seconds
    budget = Budget(settings.request_mebibytes * MIB)
    open_to_all = Budget(budget.most // OPEN_PART, of=budget)
    return (
        Kind(
            path="/filter",
            answer=extender.filter,
            limits=Limits(
                body=settings.filter_mebibytes * MIB,
                read_s=read_s,
                answer_s=answer_s,
                at_once=4,
                budget=budget,
                remedy=_BY_NAME,
            ),
            refusing=_no_node,
            local=local,
            failure=_error,
        ),
        Kind(
            path="/bind",
            answer=extender.bind,
            limits=Limits(
                body=MIB,
                read_s=read_s,
                answer_s=answer_s,
                at_once=1000,
                budget=budget,
                remedy="a bind names a pod and a node",
            ),
            refusing=lambda answer: bool(answer.get("Error")),
            local=local,
            failure=_error,
        ),
        Kind(
            path="/webhook",
            answer=extender.review,
            limits=Limits(
                body=3 * MIB,
                read_s=read_s,
                answer_s=settings.review_seconds,
                at_once=100,
                budget=open_to_all,
                remedy="an API server itself takes no larger pod",
            ),
            refusing=lambda answer: not mapping(answer.get("response")).get("allowed"),
            certified=settings.webhook_client_ca is not None,
            names=settings.webhook_client_names,
        ),
    )


def status(code: int, reason: str, message: str) -> Json:
    """A v1 Status: the API server shows its message when a webhook fails."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _no_node(answer: Json) -> bool:
    nodes = mapping(answer.get("Nodes")).get("items")
    return bool(answer.get("Error")) or not (answer.get("NodeNames") or nodes)


def _error(why: str) -> Json:
    """kube-scheduler shows this in the pod's Event, and of an HTTP status the number only."""
    return {"Error": why}
