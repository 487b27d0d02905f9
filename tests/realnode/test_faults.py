"""Case e: a device fails, and heals."""

import time

import pytest

from hami_plugin.wire.nodes import decode_json
from tests.realnode.conftest import SHARES
from tests.realnode.servers import until

pytestmark = pytest.mark.case("e", "an XID takes ten shares away within 2 s, and they come back")
REGISTER = "hami.io/node-nvidia-register"
WITHIN_S = 2.0
VICTIM = 7


def test_an_xid_takes_the_device_out_of_service_within_two_seconds_until_it_heals(daemon, node):
    machine, start = daemon.machine(), time.monotonic()

    machine.inject("lost", VICTIM)
    machine.inject("xid", VICTIM, "79")
    try:
        until(lambda: node.allocatable("nvidia.com/gpu") == SHARES - 10, "ten shares less", 15)
        took = time.monotonic() - start
        healthy = [info.health for info in decode_json(node.annotation(REGISTER))]
        until(lambda: any("79" in event["message"] for event in node.api.events("default", "node-1")), "an Event", 10)
    finally:
        machine.inject("back", VICTIM)

    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares again", 30)
    assert took < WITHIN_S
    assert healthy == [n != VICTIM for n in range(8)]
    until(lambda: all(info.health for info in decode_json(node.annotation(REGISTER))), "health in the register", 10)
