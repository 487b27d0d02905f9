"""Biren GPUs: as many containers on each as its agent says, the first that are free."""

from __future__ import annotations

from hami_plugin.config.settings import ResourceName, VendorSettings, setting
from hami_plugin.policy.charges import slot
from hami_plugin.policy.checks import standard
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.registered import in_percent
from hami_plugin.policy.requests import amount, counted
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames, Vendor
from hami_plugin.wire.nodes import decode_json

WORD = "Biren"


class BirenSettings(VendorSettings):
    """Keys of HAMi's ``biren`` section, with its defaults."""

    count: ResourceName = setting("resourceCountName", "birentech.com/gpu", "Number of GPUs.")


def families(settings: BirenSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=counted(WORD, count=amount(settings.count)),
        serves=standard(WORD, uuids=("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")),
        charge=slot,
        checks=(),
    )
    names, keys = ResourceNames(count=settings.count), AnnotationKeys.of_agent("biren", pods=WORD)
    return (Family.registered(WORD, names, keys, policy, decode=in_percent(decode_json)),)


VENDOR = Vendor(name="biren", title="Biren GPUs", settings=BirenSettings, families=families)
