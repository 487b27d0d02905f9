"""The one family of this vendor: its GPUs, of which a container gets the first that are free."""

from __future__ import annotations

from hami_plugin.protocol.register import decode_json
from hami_plugin.scheduler.engine.checks import standard
from hami_plugin.scheduler.engine.fit import Policy
from hami_plugin.scheduler.engine.registered import in_percent
from hami_plugin.scheduler.engine.requests import amount, counted
from hami_plugin.scheduler.engine.states import slot
from hami_plugin.sdk import AnnotationKeys, Family, Resources, SchedulingRules
from vendors.biren.devices import DEVICE_TYPE
from vendors.biren.node import node_side
from vendors.biren.settings import BirenSettings


def families(settings: BirenSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=counted(DEVICE_TYPE, count=amount(settings.count)),
        serves=standard(DEVICE_TYPE, uuids=("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")),
        charge=slot,
        checks=(),
    )
    resources, keys = Resources(count=settings.count), AnnotationKeys.of_agent("biren", pods=DEVICE_TYPE)
    rules = SchedulingRules.registered(resources, keys, policy, decode=in_percent(decode_json))
    return (
        Family(device_type=DEVICE_TYPE, annotations=keys, resources=resources, rules=rules, node=node_side(settings)),
    )
