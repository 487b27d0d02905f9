"""Case e: a device fails, and heals."""

import pytest

from hami_plugin.protocol.nodes import decode_json
from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.conftest import SHARES
from tests.realnode.ground import NAME
from tests.realnode.servers import until

pytestmark = pytest.mark.case("e", "an XID takes ten shares away within 2 s, and they come back")
REGISTER = "hami.io/node-nvidia-register"
WITHIN_S = 2.0
VICTIM = 7


def test_an_xid_takes_the_device_out_of_service_within_two_seconds_until_it_heals(daemon, node, record_property):
    machine = daemon.machine()
    well, without = [True] * 8, [n != VICTIM for n in range(8)]

    def healthy():
        return [info.health for info in decode_json(node.annotation(REGISTER))]

    machine.inject("xid", VICTIM, "79")
    machine.inject("lost", VICTIM)  # it comes back only after it was seen away
    try:
        fewer = until(lambda: node.allocatable("nvidia.com/gpu") == SHARES - 10, "ten shares less", WITHIN_S)
        until(lambda: healthy() == without, "the register to say so", WITHIN_S)
        until(lambda: any("79" in event["message"] for event in node.api.events("default", NAME)), "an Event", 10)
    finally:
        machine.inject("back", VICTIM)

    again = until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares again", 30)
    until(lambda: healthy() == well, "health in the register", 10)
    record_property("figures", f"ten shares less {fewer:.1f} s after an XID, and back {again:.1f} s after its end")


@pytest.mark.since(versions.DEVICE_HEALTH)
def test_a_device_that_fails_is_unhealthy_in_the_status_of_its_pod_and_heals_there(daemon, pods, record_property):
    name = pods.run(manifest("patient", container(count=1, memory=1000)))
    pods.await_settled(name)
    card = int(pods.annotation(name, "hami.io/vgpu-devices-allocated").removeprefix("GPU-")[:8])
    machine = daemon.machine()

    def health():
        (status,) = pods.get(name)["status"]["containerStatuses"]
        told = {one["name"]: one["resources"] for one in status.get("allocatedResourcesStatus", ())}
        return [device["health"] for device in told.get("nvidia.com/gpu", ())]

    until(lambda: health() == ["Healthy"], "health in the pod's status", 20)
    machine.inject("xid", card, "79")
    machine.inject("lost", card)
    try:
        ill = until(lambda: health() == ["Unhealthy"], "the fault in the pod's status", 20)
    finally:
        machine.inject("back", card)
    well = until(lambda: health() == ["Healthy"], "healing in the pod's status", 30)

    assert (pods.phase(name), pods.restarts(name)) == ("Running", 0)
    record_property("figures", f"a pod's status tells an XID after {ill:.1f} s, and its end after {well:.1f} s")
