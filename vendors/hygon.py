"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.config.settings import ResourceName, VendorSettings, setting
from hami_plugin.policy.checks import standard
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.requests import amount, counted
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames, Vendor
from hami_plugin.wire.nodes import decode_legacy

WORD = "DCU"


class HygonSettings(VendorSettings):
    """Keys of HAMi's ``hygon`` section, with its defaults."""

    count: ResourceName = setting("resourceCountName", "hygon.com/dcunum", "Number of DCUs.")
    memory: ResourceName = setting("resourceMemoryName", "hygon.com/dcumem", "Memory of each DCU.")
    cores: ResourceName = setting("resourceCoreName", "hygon.com/dcucores", "Percent of each DCU's cores.")
    memory_factor: int = setting("memoryFactor", 1, "MiB that one unit of memory stands for.", ge=1)


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
    return (Family.registered(WORD, names, keys, policy, decode=decode_legacy, memory_factor=factor),)


VENDOR = Vendor(name="hygon", title="Hygon DCUs", settings=HygonSettings, families=families)
