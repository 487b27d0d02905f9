"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.policy.checks import standard
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.requests import amount, counted
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames
from hami_plugin.wire.legacy import decode_legacy
from vendors.hygon.cards import WORD
from vendors.hygon.node import served
from vendors.hygon.settings import HygonSettings


def families(settings: HygonSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    names = ResourceNames(count=settings.count, memory=settings.memory, cores=settings.cores)
    policy = Policy(
        request=counted(
            WORD,
            count=amount(names.count),
            memory=amount(names.memory, factor=settings.memory_factor, fraction="ignore"),
            cores=amount(names.cores, fraction="ignore"),
            default_cores=100,
        ),
        serves=standard(
            WORD,
            types=("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
            uuids=("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
        ),
    )
    keys, factor = AnnotationKeys.of_agent("dcu"), settings.memory_factor
    family = Family.registered(WORD, names, keys, policy, decode=decode_legacy, memory_factor=factor)
    return (served(settings, family),)
