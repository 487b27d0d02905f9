"""The one family of this vendor: its GPUs, of which a container gets the first that are free."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.protocol.register import decode_json
from hami_plugin.scheduler.engine.registered import in_percent
from hami_plugin.sdk import AnnotationKeys, Family, Resources, whole_devices
from vendors.biren.devices import DEVICE_TYPE
from vendors.biren.node import node_side
from vendors.biren.settings import BirenSettings


def families(settings: BirenSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    uuids = ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")
    policy = whole_devices(DEVICE_TYPE, settings.count, uuids=uuids, booked=False)
    resources, keys = Resources(count=settings.count), AnnotationKeys.of_agent("biren", pods=DEVICE_TYPE)
    family = Family.registered(DEVICE_TYPE, keys, resources, policy, decode=in_percent(decode_json))
    return (replace(family, node=node_side(settings)),)
