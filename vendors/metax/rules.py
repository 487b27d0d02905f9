"""How MetaX GPUs are requested, chosen and written down: whole ones, and shares of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView, exact
from hami_plugin.protocol.grammar import bool_of, from_json, int_of, objects, text_of, to_json
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    INT32_MAX,
    WHOLE,
    Admit,
    Admitted,
    Amount,
    Booked,
    Candidate,
    Charge,
    Context,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Reason,
    Tenant,
    amount,
    count_request,
    from_annotation,
    from_capacity,
    if_limited,
    limit_or_request,
    memory_of,
    subtract_grant,
)
from hami_plugin.scheduler.engine.policy import (
    CHARGED,
    GO_TRUE,
    ChargeCheck,
    Decision,
    Policy,
    Ranking,
    Score,
    enough,
    first,
    of_this_type,
    standard,
    when,
)
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules, both_keys
from vendors.metax import zones
from vendors.metax.settings import MetaxSettings

QOS = "metax-tech.com/sgpu-qos-policy"
QOS_CLASSES = ("best-effort", "fixed-share", "burst-share")
APP_CLASS = "metax-tech.com/sgpu-app-class"
ONLINE, OFFLINE = "online", "offline"

DEFAULT_QOS = QOS_CLASSES[0]
_QOS_NOTE = "QosPolicy"


def families(settings: MetaxSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Whole GPUs, and shares. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    return (whole_gpus(settings), shared_gpus(settings, clock))


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
    declared = {
        one.annotations[QOS] for one in state.tenants if QOS in one.annotations and not _online(one.annotations)
    }
    return (declared or {state.notes.get(_QOS_NOTE, "")}) - {""}


def qos_on_card(state: DeviceState, reason: Reason) -> str:
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
def fewest_online_first(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """For an online pod: cards with the fewest online pods, then the fewest offline ones; all-offline cards last."""

    def rank(candidate: Candidate) -> tuple[bool, int, int]:
        there = _classes(candidate.state)
        return (there.keys() == {OFFLINE}, there[ONLINE], there[OFFLINE])

    return sorted(eligible, key=rank)[: context.demand.count]


def disturbance_score(decision: Decision) -> int:
    """What an online pod's arrival costs those on its cards, below 0."""
    there = {state.uuid: _classes(state) for state in decision.before}
    total = 0
    for grant in (grant for piece in decision.pieces for grant in piece):
        classes = there.get(grant.uuid, Counter())
        total -= 20 * classes[ONLINE] + (2 if classes[ONLINE] else 100) * classes[OFFLINE]
    return total


def book(state: DeviceState, grant: Grant, pod: PodView) -> Booked:
    """The card takes on the tenant's quality of service; for a whole card it has none."""
    after = subtract_grant(state, grant)
    if is_online(pod) or _QOS_NOTE not in state.notes:
        return after, grant
    qos = "" if grant.cores == WHOLE else pod.annotations.get(QOS, "")
    return replace(after, notes={**state.notes, _QOS_NOTE: qos}), grant


def restore_grant_and_class(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """The card with what a pod has of it. The pod brings its quality of service, the default one where it has none; a
    pod with a whole card has none.
    """
    qos = "" if grant.cores == WHOLE else pod.annotations.get(QOS) or DEFAULT_QOS
    tenant = Tenant(name=pod.name, annotations={**pod.annotations, QOS: qos})
    return replace(subtract_grant(state, grant, max(1, grant.slots)), tenants=(*state.tenants, tenant))


def _online(annotations: Mapping[str, str]) -> bool:
    return annotations.get(APP_CLASS) == ONLINE


def _classes(state: DeviceState) -> Counter[str]:
    found = (tenant.annotations.get(APP_CLASS, "") for tenant in state.tenants)
    return Counter(name for name in found if name in (ONLINE, OFFLINE))


def _has_part(state: DeviceState, context: Context) -> bool:
    """The pod's other containers have a share of this card."""
    pieces = context.given.get(context.demand.device_type, ())
    return any(grant.uuid == state.uuid for piece in pieces for grant in piece)


SHARED_TYPE = "Metax-SGPU"
REGISTER = "metax-tech.com/node-gpu-devices"
ALLOCATED = "metax-tech.com/gpu-devices-allocated"
DECIDED_AT = "metax-tech.com/predicate-time"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"
GO_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
MIB = 1024 * 1024


def shared_gpus(settings: MetaxSettings, clock: Callable[[], int]) -> Family:
    """Cards that several pods share, or have alone when they ask for all cores.

    ``clock`` says when a decision is written, in nanoseconds since 1970.
    """
    names = Resources(
        device_type=SHARED_TYPE, count=settings.count, memory=settings.memory, cores=settings.cores, memory_factor=1024
    )
    usual = standard(SHARED_TYPE, uuids=("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"))
    return Family(
        resources=names,
        rules=SchedulingRules(
            annotations=AnnotationKeys(
                register=REGISTER,
                to_allocate="hami.io/metax-sgpu-devices-to-allocate",
                allocated="hami.io/metax-sgpu-devices-allocated",
            ),
            policy=Policy(
                request=count_request(
                    SHARED_TYPE,
                    count=amount(names.count, limits_only=True),
                    memory=_mebibytes(names.memory),
                    cores=amount(names.cores, limits_only=True),
                    default_cores=WHOLE,
                ),
                serves=(of_this_type(SHARED_TYPE), _healthy, class_fits, qos_fits, *usual[2:]),
                charge=charge,
                checks=(CHARGED[0], *map(unless_online, CHARGED[1:])),
                select=when(
                    lambda context: is_online(context.pod),
                    then=fewest_online_first,
                    otherwise=when(_whole_cards, then=zones.within_zone, otherwise=first),
                ),
                book=book,
                restore=restore_grant_and_class,
                detail=qos_on_card,
                score=_score(aware=settings.topology_aware),
            ),
            admit=_admission(names.count),
            node_devices=from_annotation(REGISTER, decode),
            patch=_patch(clock),
        ),
    )


def decode(text: str) -> tuple[DeviceInfo, ...]:
    """The list that MetaX's agent keeps on the node. What it says of free devices is not looked at."""
    return tuple(_info(item, number) for number, item in enumerate(objects(from_json(text, REGISTER), REGISTER)))


def _info(item: Mapping[str, object], number: int) -> DeviceInfo:
    where = f"{REGISTER}[{number}]"
    qos, model = (text_of(item, key, where) for key in ("qosPolicy", "model"))
    return DeviceInfo(
        id=text_of(item, "uuid", where),
        index=number,
        count=int_of(item, "totalDevCount", where),
        devmem=int_of(item, "totalVRam", where),
        devcore=int_of(item, "totalCompute", where),
        type=SHARED_TYPE,
        numa=int_of(item, "numa", where),
        health=bool_of(item, "healthy", where),
        vendor=SHARED_TYPE,
        custom={"QosPolicy": qos, "Model": model, "LinkZone": int_of(item, "linkZone", where)},
    )


def _mebibytes(resource: str) -> Amount:
    """MiB. Kubernetes writes a suffix behind every multiple of 1000, so such a number is one of bytes, too."""

    def read(container: ContainerView) -> int | Invalid | None:
        text = limit_or_request(container, resource, limits_only=True)
        if text is None:
            return None
        try:
            number = exact(text)
        except ValueError:
            number = None
        if number is None:
            return Invalid(resource=resource, text=text, why="is not a whole number")
        in_bytes = number % 1000 == 0 or any(letter.isalpha() for letter in text)
        mib = number // MIB if in_bytes else number * 1024
        if not (0 < mib <= INT32_MAX or number == 0):
            return Invalid(resource=resource, text=text, why="is not within 1Mi to 2097151Gi; a bare number is GiB")
        return mib

    return read


def _healthy(state: DeviceState, _context: Context) -> Reason | None:
    return None if state.info.health else Reason.SICK


def _whole_cards(context: Context) -> bool:
    """All cores of each, for a pod without app class."""
    return context.demand.cores == WHOLE and APP_CLASS not in context.pod.annotations


def _admission(resource: str) -> Admit:
    """An app class is for one card; every pod but an online one has a quality of service."""

    def admit(container: ContainerView, pod: PodView) -> Admitted | Denied:
        if resource not in container.limits:
            return Admitted(found=False)
        app, qos = (pod.annotations.get(key) for key in (APP_CLASS, QOS))
        if app not in (None, ONLINE, OFFLINE):
            return Denied(why=f"{APP_CLASS}={app} is neither online nor offline")
        if app and container.amount(resource) != 1:
            return Denied(why=f"{APP_CLASS}={app} is for one card: set {resource} to 1")
        if app == ONLINE or qos in QOS_CLASSES:
            return Admitted(found=True)
        if qos is not None:
            return Denied(why=f"{QOS}={qos} is none of {', '.join(QOS_CLASSES)}")
        return Admitted(found=True, pod_annotations={QOS: DEFAULT_QOS})

    return admit


def _score(*, aware: bool) -> Score:
    """Online pods: whom they disturb. Whole cards, if link zones count: how well they are linked, and what is cut."""

    def score(decision: Decision) -> Ranking:
        if is_online(decision.pod):
            return Ranking(value=disturbance_score(decision))
        wanted = decision.pod.annotations.get(TOPOLOGY_AWARE)
        counts = wanted in GO_TRUE or (aware and wanted not in GO_FALSE)
        return Ranking(value=zones.linked_score(decision) if counts else 0)

    return score


def _patch(clock: Callable[[], int]) -> Patch:
    """HAMi's annotations, and those that MetaX's agent reads."""

    def of_decision(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        parts = [
            [{"uuid": grant.uuid, "compute": grant.cores, "vRam": grant.memory} for grant in piece]
            for piece in given[family.resources.device_type]
        ]
        allocated = [[{key: value for key, value in part.items() if value} for part in piece] for piece in parts]
        return {
            **both_keys(family, pod, given),
            ALLOCATED: to_json(allocated, ALLOCATED),
            DECIDED_AT: str(clock()),
        }

    return of_decision


WHOLE_TYPE = "Metax-GPU"
FORECASTS = {"binpack": "metax-tech.com/gpu.topology.losses", "spread": "metax-tech.com/gpu.topology.scores"}
"""By node policy: what the other cards would lose, and how well the granted ones would be linked."""

FULL_MARKS = 2000.0
UNKNOWN = {"binpack": 0.0, "spread": FULL_MARKS}
"""The last place: binpack takes the highest, spread the lowest."""


def whole_gpus(settings: MetaxSettings) -> Family:
    """Cards without names of their own: what counts is how many are free."""
    return Family(
        resources=Resources(device_type=WHOLE_TYPE, count=settings.whole),
        rules=SchedulingRules(
            annotations=AnnotationKeys(
                to_allocate="hami.io/metax-gpu-devices-to-allocate",
                allocated="hami.io/metax-gpu-devices-allocated",
                others=tuple(FORECASTS.values()),
            ),
            policy=Policy(
                request=count_request(WHOLE_TYPE, count=amount(settings.whole), default_cores=100),
                serves=standard(WHOLE_TYPE),
                score=forecast_score,
            ),
            admit=if_limited(settings.whole),
            node_devices=from_capacity(settings.whole, _whole_gpu),
            lock=None,
        ),
    )


def forecast_score(decision: Decision) -> float:
    """2000 less the node's loss (binpack) or score (spread) for as many cards as the pod gets."""
    if decision.order not in FORECASTS:
        return 0.0
    text = decision.node.annotations.get(FORECASTS[decision.order], "")
    value = forecast(text, sum(map(len, decision.pieces)))
    return UNKNOWN[decision.order] if value is None else FULL_MARKS - value


def forecast(text: str, count: int) -> int | None:
    """What ``{"1": 0, "2": 110}`` says of ``count`` cards."""
    try:
        table = from_json(text, "forecast")
    except WireError:
        return None
    value = table.get(str(count)) if isinstance(table, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole_gpu(node: NodeView, number: int, _count: int) -> DeviceInfo:
    name = f"{node.name}-metax-{number}"
    return DeviceInfo(
        id=name, index=number, count=1, devmem=65536, devcore=100, type=WHOLE_TYPE, health=True, vendor=WHOLE_TYPE
    )
