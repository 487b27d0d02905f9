"""Shares of MetaX GPUs: how they are asked for, found on a node, chosen and told to MetaX's agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_plugin.model.quantity import exact
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.grammar import bool_of, from_json, int_of, objects, text_of, to_json
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.devices import WHOLE, Context, DeviceState, Given
from hami_plugin.scheduler.engine.policy import CHARGED, GO_TRUE, Policy, first, of_this_type, standard, when
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.registered import annotated
from hami_plugin.scheduler.engine.requests import (
    INT32_MAX,
    Admit,
    Admitted,
    Amount,
    Denied,
    Invalid,
    amount,
    counted,
    written,
)
from hami_plugin.scheduler.engine.scores import Decision, Ranking, Score
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules, both_keys
from vendors.metax import tenants, zones
from vendors.metax.settings import MetaxSettings

DEVICE_TYPE = "Metax-SGPU"
REGISTER = "metax-tech.com/node-gpu-devices"
ALLOCATED = "metax-tech.com/gpu-devices-allocated"
DECIDED_AT = "metax-tech.com/predicate-time"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"
GO_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
MIB = 1024 * 1024


def family(settings: MetaxSettings, clock: Callable[[], int]) -> Family:
    """Cards that several pods share, or have alone when they ask for all cores.

    ``clock`` says when a decision is written, in nanoseconds since 1970.
    """
    names = Resources(count=settings.count, memory=settings.memory, cores=settings.cores, memory_factor=1024)
    usual = standard(DEVICE_TYPE, uuids=("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"))
    return Family(
        device_type=DEVICE_TYPE,
        resources=names,
        annotations=AnnotationKeys(
            register=REGISTER,
            to_allocate="hami.io/metax-sgpu-devices-to-allocate",
            allocated="hami.io/metax-sgpu-devices-allocated",
        ),
        rules=SchedulingRules(
            policy=Policy(
                request=counted(
                    DEVICE_TYPE,
                    count=amount(names.count, limits_only=True),
                    memory=_memory(names.memory),
                    cores=amount(names.cores, limits_only=True),
                    default_cores=WHOLE,
                ),
                serves=(of_this_type(DEVICE_TYPE), _healthy, tenants.class_fits, tenants.qos_fits, *usual[2:]),
                charge=tenants.charge,
                checks=(CHARGED[0], *map(tenants.unless_online, CHARGED[1:])),
                select=when(
                    lambda context: tenants.is_online(context.pod),
                    then=tenants.least_disturbed,
                    otherwise=when(_whole_cards, then=zones.within_zone, otherwise=first),
                ),
                book=tenants.book,
                restore=tenants.restored,
                detail=tenants.there,
                score=_score(aware=settings.topology_aware),
            ),
            admit=_admission(names.count),
            node_devices=annotated(REGISTER, decode),
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
        type=DEVICE_TYPE,
        numa=int_of(item, "numa", where),
        health=bool_of(item, "healthy", where),
        vendor=DEVICE_TYPE,
        custom={"QosPolicy": qos, "Model": model, "LinkZone": int_of(item, "linkZone", where)},
    )


def _memory(resource: str) -> Amount:
    """MiB. Kubernetes writes a suffix behind every multiple of 1000, so such a number is one of bytes, too."""

    def read(container: ContainerView) -> int | Invalid | None:
        text = written(container, resource, limits_only=True)
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
    return context.demand.cores == WHOLE and tenants.APP_CLASS not in context.pod.annotations


def _admission(resource: str) -> Admit:
    """An app class is for one card; every pod but an online one has a quality of service."""

    def admit(container: ContainerView, pod: PodView) -> Admitted | Denied:
        if resource not in container.limits:
            return Admitted(found=False)
        app, qos = (pod.annotations.get(key) for key in (tenants.APP_CLASS, tenants.QOS))
        if app not in (None, tenants.ONLINE, tenants.OFFLINE):
            return Denied(why=f"{tenants.APP_CLASS}={app} is neither online nor offline")
        if app and container.amount(resource) != 1:
            return Denied(why=f"{tenants.APP_CLASS}={app} is for one card: set {resource} to 1")
        if app == tenants.ONLINE or qos in tenants.QOS_CLASSES:
            return Admitted(found=True)
        if qos is not None:
            return Denied(why=f"{tenants.QOS}={qos} is none of {', '.join(tenants.QOS_CLASSES)}")
        return Admitted(found=True, pod_annotations={tenants.QOS: tenants.DEFAULT_QOS})

    return admit


def _score(*, aware: bool) -> Score:
    """Online pods: whom they disturb. Whole cards, if link zones count: how well they are linked, and what is cut."""

    def score(decision: Decision) -> Ranking:
        if tenants.is_online(decision.pod):
            return Ranking(value=tenants.disturbance(decision))
        said = decision.pod.annotations.get(TOPOLOGY_AWARE)
        counts = said in GO_TRUE or (aware and said not in GO_FALSE)
        return Ranking(value=zones.linked_score(decision) if counts else 0)

    return score


def _patch(clock: Callable[[], int]) -> Patch:
    """HAMi's annotations, and those that MetaX's agent reads."""

    def of_decision(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        parts = [
            [{"uuid": grant.uuid, "compute": grant.cores, "vRam": grant.memory} for grant in piece]
            for piece in given[family.device_type]
        ]
        said = [[{key: value for key, value in part.items() if value} for part in piece] for piece in parts]
        return {
            **both_keys(family, pod, given),
            ALLOCATED: to_json(said, ALLOCATED),
            DECIDED_AT: str(clock()),
        }

    return of_decision
