"""Case i, too: the kubelet restarts after an Allocate, before the container starts; or its checkpoint is removed."""

import json
import os
import signal

import pytest

from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.checkpoint import PATH
from tests.realnode.conftest import SHARES
from tests.realnode.kubelet import restarted_before_pods
from tests.realnode.late import late
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("i", "the kubelet restarts between Allocate and start, also without its checkpoint"),
    pytest.mark.since(versions.INIT_AMOUNTS),  # 1.20 fails no such pod, nor takes shares without its API server
]
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"


@pytest.fixture
def waiting(pods):
    return late(pods, "waiting", container(count=1, memory=1234, cores=12))


def test_a_pod_starts_with_its_own_answer_where_the_daemon_is_back_before_the_kubelet_sees_it(waiting, pods, node):
    restarted_before_pods(node, SHARES)
    waiting.arrive()

    pods.await_running(waiting.name, within_s=90)
    assert pods.granted(waiting.name).env[LIMIT] == "1234m"


def test_a_pod_fails_with_the_kubelets_reason_where_the_daemon_comes_back_after_it(waiting, pods, node, daemon):
    """Whoever has answered before, such a kubelet fails what waits to start. The share is free again."""
    kubelet, pid = node.servers["kubelet"], daemon.pid()

    kubelet.end()
    os.kill(pid, signal.SIGSTOP)
    try:
        kubelet.start()
        until(lambda: pods.phase(waiting.name) == "Failed", "the end of the pod", 40)
    finally:
        os.kill(pid, signal.SIGCONT)

    status = pods.get(waiting.name)["status"]
    assert (status["reason"], "no healthy devices present" in status["message"]) == ("UnexpectedAdmissionError", True)
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", 60)
    pods.await_settled(pods.run(manifest("all", container(count=8, memory=81000))))


def test_without_the_checkpoint_what_waits_is_answered_again_and_what_runs_cannot_restart(waiting, pods, node, daemon):
    runs = pods.run(manifest("runs", container(count=1, memory=1500, cores=15), restartPolicy="Always"))
    pods.await_settled(runs)
    before, kubelet = pods.containers(runs), node.servers["kubelet"]

    kubelet.end()
    node.path(PATH).unlink()
    restarted_before_pods(node, SHARES)
    waiting.arrive()

    pods.await_running(waiting.name, within_s=90)
    assert pods.granted(waiting.name).env[LIMIT] == "1234m"
    assert (pods.containers(runs), pods.phase(runs)) == (before, "Running")
    uids = {entry["PodUID"] for entry in json.loads(node.path(PATH).read_bytes())["Data"]["PodDeviceEntries"]}
    assert uids == {pods.get(waiting.name)["metadata"]["uid"]}

    os.kill(pods.pid(runs), signal.SIGKILL)

    wanted = "no devices found allocated in local cache"
    until(lambda: any(wanted in line for line in pods.told(runs)), "the kubelet's reason", 60)
    pods.delete(runs)
    pods.await_settled(pods.run(manifest("next", container(count=7, memory=81000))))
