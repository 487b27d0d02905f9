"""How MLUs are requested, chosen and written down for the node's agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.devices import Given, amount, count_request, from_summed_capacity, if_limited
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, standard, within_quota
from hami_plugin.sdk import AnnotationKeys, Family, LockRule, Resources, SchedulingRules, Units, both_keys
from vendors.cambricon.settings import SLOTS, CambriconSettings

DEVICE_TYPE: Final = "MLU"
UNIT: Final = 256
"""MiB that one unit of memory stands for."""
PROFILE: Final = "CAMBRICON_DSMLU_PROFILE"
AGENT: Final = "cambricon-mlu"


def name(node: str, number: int) -> str:
    """What HAMi's scheduler calls an MLU: it counts them, and the node's agent has no say in it."""
    return f"{node}-{AGENT}-{number}"


def profile(index: int, cores: int, memory: int) -> str:
    """A share as Cambricon's agent writes it; ``memory`` in MiB."""
    return f"{index}_{cores}_{memory // UNIT}"


WAITING = ("CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_ASSIGHED")
"""What tells Cambricon's agent that a pod waits for its share: as HAMi spells it, and as the agent does."""


def families(settings: CambriconSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    names = resources(settings)
    memory, cores = amount(names.memory, factor=UNIT), amount(names.cores, fraction="ignore")
    policy = Policy(
        request=count_request(DEVICE_TYPE, count=amount(names.count), memory=memory, cores=cores, default_cores=100),
        serves=standard(DEVICE_TYPE, uuids=("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")),
        checks=(within_quota(memory=names.memory, cores=names.cores, factor=UNIT), *CHARGED),
    )
    family = Family(
        resources=names,
        rules=SchedulingRules(
            annotations=AnnotationKeys(
                to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
                allocated="hami.io/cambricon-mlu-devices-allocated",
            ),
            policy=policy,
            admit=if_limited(names.count),
            node_devices=from_summed_capacity(
                names.cores, names.memory, each=SLOTS, unit=UNIT, name=AGENT, device_type=DEVICE_TYPE
            ),
            patch=patch,
            lock=LockRule(annotation="cambricon.com/dsmlu.lock", expires_s=120.0, named=False),
        ),
    )
    return (family,)


def resources(settings: CambriconSettings) -> Resources:
    """Shares of MLUs, and beside them percent of cores and units of memory."""
    return Resources(
        device_type=DEVICE_TYPE,
        count=settings.count,
        memory=settings.memory,
        cores=settings.cores,
        memory_factor=UNIT,
        units=(
            Units(resource=settings.cores, of_device=lambda _device: 100, of_grant=lambda grant: grant.cores),
            Units(
                resource=settings.memory,
                of_device=lambda device: device.memory // UNIT,
                of_grant=lambda grant: -(-grant.memory // UNIT),
            ),
        ),
    )


def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
    """The agent serves one share a pod, the first: its card, percent of cores, and units of memory."""
    waiting = {**both_keys(family, pod, given), **dict.fromkeys(WAITING, "false")}
    first = next((grant for piece in given[family.resources.device_type] for grant in piece), None)
    if first is None:
        return waiting
    return {**waiting, PROFILE: profile(first.index, first.cores, first.memory)}
