"""The golden table of the wire protocol: one line a fact, as HAMi's tests and sources have it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.device import physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.nodes import DeviceInfo, NodeLock, decode_json, decode_legacy, parse_lock
from hami_plugin.protocol.pods import decode_devices, encode_devices
from vendors.nvidia.rules import decode_mig, encode_mig

REFUSED = "refused"
P4 = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
P4_INFO = DeviceInfo(id=P4, count=10, devmem=7680, devcore=100, type="NVIDIA-Tesla P4", mode="hami-core", health=True)
MIG = (
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":0,"size":2},'
    '"migUUID":"MIG-a","gpuInstanceID":4,"computeInstanceID":0}]'
)
HALF_MIG = MIG.replace(',"gpuInstanceID":4,"computeInstanceID":0', "")
E290 = "GPU-e290caca-2f0c-9582-acab-67a142b61ffa"


def granted(uuid: str, memory: int, cores: int) -> tuple[Grant, ...]:
    return (Grant(uuid=uuid, device_type="NVIDIA", memory=memory, cores=cores),)


GOLDEN: list[tuple[str, Callable[[str], object], str, object]] = [
    (
        "a node's JSON",
        decode_json,
        '[{"index":1,"id":"id-1","count":1,"devmem":1024,"devcore":10,"type":"type","numa":0,"health":true}]',
        (DeviceInfo(id="id-1", index=1, count=1, devmem=1024, devcore=10, type="type", health=True),),
    ),
    (
        "a device without index and NUMA node is the first",
        decode_json,
        '[{"id":"GPU-a","count":1,"health":true}]',
        (DeviceInfo(id="GPU-a", count=1, index=0, numa=0, health=True),),
    ),
    ("a device without health is unhealthy", decode_json, '[{"id":"a"}]', (DeviceInfo(id="a", health=False),)),
    ("seven fields", decode_legacy, f"{P4},10,7680,100,NVIDIA-Tesla P4,0,true:", (P4_INFO,)),
    ("nine fields", decode_legacy, f"{P4},10,7680,100,NVIDIA-Tesla P4,0,true,0,hami-core:", (P4_INFO,)),
    ("an empty legacy text", decode_legacy, "", REFUSED),
    ("a legacy text without separator", decode_legacy, "abc", REFUSED),
    (
        "one container with one card",
        lambda _: encode_devices([granted("nvidia-device-0", 2000, 1)]),
        "",
        "nvidia-device-0,NVIDIA,2000,1:;",
    ),
    (
        "two containers are three pieces",
        decode_devices,
        "GPU-a,NVIDIA,500,3:;GPU-b,NVIDIA,500,3:;",
        (granted("GPU-a", 500, 3), granted("GPU-b", 500, 3), ()),
    ),
    ("a device of three fields", decode_devices, "GPU-a,NVIDIA,500:;", REFUSED),
    ("memory that is no number", decode_devices, "GPU-a,NVIDIA,5x,3:;", REFUSED),
    ("MIG allocations there and back", lambda text: encode_mig(decode_mig(text)), MIG, MIG),
    ("a MIG UUID without instance ids", decode_mig, HALF_MIG, REFUSED),
    (
        "a lock with its owner",
        parse_lock,
        "2026-08-21T10:11:12+08:00,default,pod-a",
        NodeLock(
            time=datetime(2026, 8, 21, 10, 11, 12, tzinfo=timezone(timedelta(hours=8))),
            namespace="default",
            pod="pod-a",
        ),
    ),
    (
        "a legacy lock",
        parse_lock,
        "2026-08-21T10:11:12Z",
        NodeLock(time=datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC), namespace="", pod=""),
    ),
    ("a lock of two parts", parse_lock, "a,b", REFUSED),
    ("a replica id", physical_id, f"{E290}-7", E290),
    ("a replica id of time-slicing", physical_id, f"{E290}::3", E290),
]


@pytest.mark.parametrize(("read", "text", "expected"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN])
def test_the_golden_table_holds(read: Callable[[str], object], text: str, expected: object):
    try:
        answer = read(text)
    except WireError:
        answer = REFUSED

    assert answer == expected
