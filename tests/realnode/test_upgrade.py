"""Case j: the daemon is replaced while pods run and while others are being admitted."""

import threading
import time

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.servers import until

pytestmark = pytest.mark.case("j", "the daemon is replaced while pods run and are being admitted")
DURING, EVERY_S, AFTER = 8, 1.0, 4
SHARES = 80
NO_DEVICES = "UnexpectedAdmissionError"


def test_pods_that_arrive_while_the_daemon_is_replaced_run_with_their_own_limits(pods, daemon, record_property):
    """A kubelet fails what reaches it while no daemon serves it; here, as a controller would, it is made anew."""
    old = pods.run(manifest("old", container(count=1, memory=900, cores=9)))
    pods.await_settled(old)
    before, refused = pods.containers(old), []
    replacing = threading.Thread(target=daemon.replace)
    asked = {f"during-{n}": manifest(f"during-{n}", container(count=1, memory=1000 + n)) for n in range(DURING)}

    def all_run():
        for name, one in asked.items():
            status = pods.get(name)["status"]
            if status.get("phase") == "Failed":
                assert status["reason"] == NO_DEVICES, status
                refused.append(name)
                pods.delete(name)
                pods.submit(one)
        return all(pods.phase(name) == "Running" for name in asked)

    replacing.start()
    for one in asked.values():
        pods.submit(one)
        time.sleep(EVERY_S)  # they arrive before, during and after
    replacing.join(120)

    until(all_run, "all pods to run", 120, every_s=0.5)
    pods.await_settled(*asked)
    limits = {name: pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] for name in asked}
    assert limits == {f"during-{n}": f"{1000 + n}m" for n in range(DURING)}
    # The gap ends with the registration: whoever comes later is served at once, and nothing is left of the gap.
    until(lambda: daemon.node.allocatable("nvidia.com/gpu") == SHARES, "all shares", 60)
    for number in range(AFTER):
        pods.await_settled(pods.run(manifest(f"after-{number}", container(count=1, memory=2000 + number))))
        assert pods.granted(f"after-{number}").env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{2000 + number}m"
    assert (pods.containers(old), pods.phase(old)) == (before, "Running")
    record_property("figures", f"{len(refused)} of {DURING} pods reached the kubelet while the daemon was replaced")
