"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from typing import Final

from hami_plugin.protocol.nodes import decode_legacy
from hami_plugin.scheduler.engine.devices import amount, count_request
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.sdk import AnnotationKeys, Family, Resources
from vendors.hygon.settings import HygonSettings

DEVICE_TYPE: Final = "DCU"


def families(settings: HygonSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    names = Resources(
        device_type=DEVICE_TYPE,
        count=settings.count,
        memory=settings.memory,
        cores=settings.cores,
        memory_factor=settings.memory_factor,
    )
    policy = Policy(
        request=count_request(
            DEVICE_TYPE,
            count=amount(names.count),
            memory=amount(names.memory, factor=settings.memory_factor, fraction="ignore"),
            cores=amount(names.cores, fraction="ignore"),
            default_cores=100,
        ),
        serves=standard(
            DEVICE_TYPE,
            types=("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
            uuids=("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
        ),
    )
    return (Family.registered(names, AnnotationKeys.of_agent("dcu"), policy, decode=decode_legacy),)
