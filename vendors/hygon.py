"""Hygon DCUs: shared by memory and cores, the first that fit."""

from __future__ import annotations

from pydantic import Field

from hami_plugin.config.settings import ResourceName, VendorSettings
from hami_plugin.policy.admission import if_limited
from hami_plugin.policy.checks import standard
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.registered import annotated
from hami_plugin.policy.requests import amount, counted
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames, Vendor
from hami_plugin.wire.nodes import decode_legacy

WORD = "DCU"
KEYS = AnnotationKeys(
    register="hami.io/node-dcu-register",
    handshake="hami.io/node-handshake-dcu",
    to_allocate="hami.io/dcu-devices-to-allocate",
    allocated="hami.io/dcu-devices-allocated",
)


class HygonSettings(VendorSettings):
    """Keys of HAMi's ``hygon`` section, with its defaults."""

    count: ResourceName = Field("hygon.com/dcunum", alias="resourceCountName", description="Number of DCUs.")
    memory: ResourceName = Field("hygon.com/dcumem", alias="resourceMemoryName", description="MiB of each DCU.")
    cores: ResourceName = Field("hygon.com/dcucores", alias="resourceCoreName", description="Percent of each DCU.")
    memory_factor: int = Field(1, ge=1, alias="memoryFactor", description="MiB that one unit of memory stands for.")


def families(settings: HygonSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=counted(
            WORD,
            count=amount(settings.count),
            memory=amount(settings.memory, factor=settings.memory_factor, fraction="ignore"),
            cores=amount(settings.cores, fraction="ignore"),
            default_cores=100,
        ),
        serves=standard(
            WORD,
            types=("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
            uuids=("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
        ),
    )
    family = Family(
        word=WORD,
        resources=ResourceNames(count=settings.count, memory=settings.memory, cores=settings.cores),
        annotations=KEYS,
        policy=policy,
        admit=if_limited(settings.count),
        node_devices=annotated(KEYS.register, decode_legacy),
        memory_factor=settings.memory_factor,
    )
    return (family,)


VENDOR = Vendor(name="hygon", title="Hygon DCUs", settings=HygonSettings, families=families)
