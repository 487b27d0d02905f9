"""Case c: who asks for more than there is waits with the reason, and runs when room is made."""

import pytest

from tests.realnode.api import ApiError
from tests.realnode.asked import container, manifest
from tests.realnode.servers import until

pytestmark = pytest.mark.case("c", "over-asking waits with our reason, and runs when there is room")


def test_a_pod_waits_with_our_reason_until_room_is_made(pods):
    full = pods.run(manifest("full", container(count=8, memory=70000, cores=80)))
    pods.await_settled(full)

    name = pods.submit(manifest("waits", container(count=1, memory=30000, cores=10)))

    until(lambda: any("CardInsufficientMemory" in line for line in pods.told(name)), "our reason in an Event", 30)
    assert pods.phase(name) == "Pending"
    pods.delete(full)
    pods.await_running(name, within_s=120)
    pods.await_settled(name)
    assert pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "30000m"


def test_a_pod_that_no_node_can_ever_run_is_refused_at_once_with_the_reason(pods):
    with pytest.raises(ApiError, match="gpu"):
        pods.submit(manifest("never", container(count=9, memory=1000)))
