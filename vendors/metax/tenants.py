"""Who may share a MetaX GPU: tenants of one quality of service, and of an app class all or none.

An online pod goes before everybody on its card: its cores are not counted, and offline pods stay away from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.devices import (
    WHOLE,
    Booked,
    Candidate,
    Charge,
    Context,
    DeviceState,
    Tenant,
    memory_of,
    taken,
)
from hami_plugin.scheduler.engine.policy import ChargeCheck, enough
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.scores import Decision

QOS = "metax-tech.com/sgpu-qos-policy"
QOS_CLASSES = ("best-effort", "fixed-share", "burst-share")
APP_CLASS = "metax-tech.com/sgpu-app-class"
ONLINE, OFFLINE = "online", "offline"

DEFAULT_QOS = QOS_CLASSES[0]
_QOS_NOTE = "QosPolicy"


def is_online(pod: PodView) -> bool:
    return _online(pod.annotations)


def class_fits(state: DeviceState, context: Context) -> Reason | None:
    """An idle card takes every pod; a used one those of its kind, and no offline pod beside an online one."""
    own = context.pod.annotations.get(APP_CLASS)
    there = _classes(state)
    if own in (ONLINE, OFFLINE) and _has_part(state, context):
        there[own] += 1
    if not state.slots or (bool(there) == (own in (ONLINE, OFFLINE)) and not (own == OFFLINE and there[ONLINE])):
        return None
    return Reason.APP_CLASS_MISMATCH


def qos_fits(state: DeviceState, context: Context) -> Reason | None:
    """A card has the quality of service of its tenants. Idle cards, whole cards and online pods are free of it."""
    if is_online(context.pod) or not state.slots or context.demand.cores == WHOLE:
        return None
    return Reason.QOS_MISMATCH if qualities(state) - {context.pod.annotations.get(QOS, "")} else None


def qualities(state: DeviceState) -> AbstractSet[str]:
    """The qualities of service on a card: what its tenants were admitted with, else what the node says of it. A node
    says it late, or not at all.
    """
    told = {one.annotations[QOS] for one in state.tenants if QOS in one.annotations and not _online(one.annotations)}
    return (told or {state.notes.get(_QOS_NOTE, "")}) - {""}


def there(state: DeviceState, reason: Reason) -> str:
    """Which qualities of service a card has that is refused for its own; a word of somebody's own is not repeated."""
    if reason is not Reason.QOS_MISMATCH:
        return ""
    return "+".join(sorted({one if one in QOS_CLASSES else "unknown" for one in qualities(state)}))


def charge(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """More cores than a card has are not a whole card: nothing has so many."""
    cores = 0 if is_online(context.pod) else context.demand.cores
    return Charge(memory=memory_of(context.demand, state), cores=cores, notes=state.notes)


def unless_online(check: ChargeCheck) -> ChargeCheck:
    return lambda one, context, eligible: None if is_online(context.pod) else check(one, context, eligible)


@enough
def least_disturbed(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """For an online pod: cards with the fewest online pods, then the fewest offline ones; all-offline cards last."""

    def rank(candidate: Candidate) -> tuple[bool, int, int]:
        there = _classes(candidate.state)
        return (there.keys() == {OFFLINE}, there[ONLINE], there[OFFLINE])

    return sorted(eligible, key=rank)[: context.demand.count]


def disturbance(decision: Decision) -> int:
    """What an online pod's arrival costs those on its cards, below 0."""
    there = {state.uuid: _classes(state) for state in decision.before}
    total = 0
    for grant in (grant for piece in decision.pieces for grant in piece):
        classes = there.get(grant.uuid, Counter())
        total -= 20 * classes[ONLINE] + (2 if classes[ONLINE] else 100) * classes[OFFLINE]
    return total


def book(state: DeviceState, grant: Grant, pod: PodView) -> Booked:
    """The card takes on the tenant's quality of service; for a whole card it has none."""
    after = taken(state, grant)
    if is_online(pod) or _QOS_NOTE not in state.notes:
        return after, grant
    qos = "" if grant.cores == WHOLE else pod.annotations.get(QOS, "")
    return replace(after, notes={**state.notes, _QOS_NOTE: qos}), grant


def restored(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """The card with what a pod has of it. The pod brings its quality of service, the default one where it has none; a
    pod with a whole card has none.
    """
    qos = "" if grant.cores == WHOLE else pod.annotations.get(QOS) or DEFAULT_QOS
    tenant = Tenant(name=pod.name, annotations={**pod.annotations, QOS: qos})
    return replace(taken(state, grant, max(1, grant.slots)), tenants=(*state.tenants, tenant))


def _online(annotations: Mapping[str, str]) -> bool:
    return annotations.get(APP_CLASS) == ONLINE


def _classes(state: DeviceState) -> Counter[str]:
    found = (tenant.annotations.get(APP_CLASS, "") for tenant in state.tenants)
    return Counter(name for name in found if name in (ONLINE, OFFLINE))


def _has_part(state: DeviceState, context: Context) -> bool:
    """The pod's other containers have a share of this card."""
    pieces = context.given.get(context.demand.device_type, ())
    return any(grant.uuid == state.uuid for piece in pieces for grant in piece)
