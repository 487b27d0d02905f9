"""Case j: the daemon is replaced while pods run and ten others a second arrive."""

import threading
import time

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.servers import until
from tests.support.scale import sized

pytestmark = pytest.mark.case("j", "the daemon is replaced while pods run and ten others a second arrive")
COUNT, EVERY_S = sized(15, 60), 0.1
SHARES = 80
RESOURCE = "nvidia.com/gpu"
NO_DEVICES = "UnexpectedAdmissionError"
SURGES = 22
"""The minor version since which a DaemonSet starts the next pod before it ends the present one."""


class Allocatable:
    """For how long the node's status said less than all devices while it was looked at."""

    def __init__(self, node):
        self.gap_s = 0.0
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._ended.set()
        self._thread.join()

    def _follow(self):
        since = None
        while not self._ended.wait(EVERY_S):
            now, lacks = time.monotonic(), self._node.allocatable(RESOURCE) < SHARES
            self.gap_s = max(self.gap_s, now - since if since is not None else 0.0)
            since = (now if since is None else since) if lacks else None


def test_pods_that_arrive_while_the_daemon_is_replaced_run_with_their_own_limits(pods, daemon, record_property):
    """Where the old daemon ends first, a kubelet fails what reaches it meanwhile; a controller would make it anew."""
    old = pods.run(manifest("old", container(count=1, memory=900, cores=9)))
    pods.await_settled(old)
    before, refused = pods.containers(old), []
    surges = daemon.node.kubernetes.minor >= SURGES
    asked = {f"during-{n}": manifest(f"during-{n}", container(count=1, memory=1000 + n)) for n in range(COUNT)}

    def all_run():
        known = {pod["metadata"]["name"]: pod["status"] for pod in daemon.node.api.pods()}
        for name, one in asked.items():
            if known[name].get("phase") == "Failed":
                assert known[name]["reason"] == NO_DEVICES, known[name]
                refused.append(name)
                pods.delete(name)
                pods.submit(one)
        return all(known[name].get("phase") == "Running" for name in asked)

    replacing = threading.Thread(target=daemon.replace)
    with Allocatable(daemon.node) as seen:
        replacing.start()
        if surges:
            daemon.await_successor()
        due = time.monotonic()
        for one in asked.values():
            pods.submit(one)
            due += EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))
        replacing.join(240)
        until(all_run, "all pods to run", 240, every_s=0.5)
        until(lambda: daemon.node.allocatable(RESOURCE) == SHARES, "all shares", 60)

    figures = (
        f"{COUNT} pods arrived, {len(refused)} failed; the node's status lacked shares for {seen.gap_s:.1f} s at most"
    )
    record_property("figures", figures)
    pods.await_settled(*asked)
    limits = {name: pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] for name in asked}
    assert limits == {f"during-{n}": f"{1000 + n}m" for n in range(COUNT)}
    pods.await_settled(pods.run(manifest("after", container(count=1, memory=2000))))
    assert (pods.containers(old), pods.phase(old)) == (before, "Running")
    if surges:
        assert (refused, seen.gap_s) == ([], 0.0), figures
