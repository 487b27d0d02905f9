"""Case i: a container that would start with what was answered for another pod's does not start."""

import os
import signal

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.checkpoint import PATH, exchanged
from tests.realnode.servers import until

pytestmark = pytest.mark.case("i", "a forged holder does not start, and its Event says why")


def state_of(pods, name):
    (status,) = pods.get(name)["status"]["containerStatuses"]
    return status["state"]


def test_after_the_kubelet_exchanged_two_answers_neither_container_starts_again(pods, node, daemon):
    names = [
        pods.run(manifest(name, container(count=1, memory=memory), restartPolicy="Always"))
        for name, memory in (("first", 1100), ("second", 2200))
    ]
    pods.await_settled(*names)
    first, second = (pods.get(name)["metadata"]["uid"] for name in names)
    kubelet, checkpoint = node.servers["kubelet"], node.path(PATH)
    kubelet.end()
    try:
        checkpoint.write_bytes(exchanged(checkpoint.read_bytes(), first, second))
    finally:
        kubelet.start()
    daemon.await_ready()
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 60)

    os.kill(pods.pid("first"), signal.SIGKILL)

    wanted = "would start with what was answered for"
    until(lambda: any(wanted in line for line in pods.told("first")), "the reason at the pod", 60)
    told = pods.told("first")
    refused = next(line for line in told if wanted in line)
    assert "second" in refused or second in refused
    until(lambda: "running" not in state_of(pods, "first"), "the kubelet's word that it does not run", 30)
    assert pods.phase("second") == "Running"
    starts = {k: v for k, v in daemon.metrics().items() if k.startswith("hami_plugin_container_starts_total")}
    assert any("WrongHolder" in name and value >= 1 for name, value in starts.items()), starts
    assert "running" not in state_of(pods, "first")
