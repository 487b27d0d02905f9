"""Case f: whatever else runs on the node restarts, the pods do not notice, and the next pod runs."""

import signal

import pytest

from hami_plugin.protocol import keys
from tests.realnode.asked import container, manifest
from tests.realnode.servers import until

pytestmark = pytest.mark.case("f", "kubelet, daemon, API server and containerd restart under running pods")


@pytest.fixture
def survivors(pods):
    """Two pods that run, and a look at what they are: it is the same as long as they were left alone."""
    names = [pods.submit(manifest(f"old-{n}", container(count=1, memory=1000 + n, cores=10))) for n in range(2)]
    pods.await_running(*names)
    pods.await_settled(*names)

    def look():
        return [(pods.containers(name), pods.phase(name), pods.restarts(name)) for name in names]

    return look


def next_pod_runs(pods, node):
    name = pods.run(manifest("new", container(count=1, memory=1500, cores=15)), within_s=60)
    pods.await_settled(name)
    assert pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1500m"
    assert not node.annotation(keys.NODE_LOCK)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_kubelet(pods, node, daemon, survivors, how):
    before, kubelet = survivors(), node.servers["kubelet"]
    registered = daemon.registrations()

    kubelet.end(how)
    kubelet.start()

    until(lambda: daemon.registrations() > registered, "another registration", 40)
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 40)
    next_pod_runs(pods, node)
    assert survivors() == before


def test_the_daemon_is_killed(pods, node, daemon, survivors):
    before, pid = survivors(), daemon.pid()

    daemon.kill()

    until(lambda: daemon.restarts() > 0 and daemon.pid_or_none() not in (None, pid), "another process", 60)
    daemon.await_ready()
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 40)
    next_pod_runs(pods, node)
    assert survivors() == before


def test_the_api_server(pods, node, daemon, survivors):
    before, server = survivors(), node.servers["apiserver"]

    server.end(signal.SIGKILL)
    server.start()

    until(node.api.is_up, "the API server", 60)
    next_pod_runs(pods, node)
    assert survivors() == before


def test_containerd(pods, node, daemon, survivors):
    before, server = survivors(), node.servers["containerd"]

    server.end(signal.SIGKILL)
    server.start()

    until(lambda: node.enclosure.run("ctr", "version", deadline_s=30).returncode == 0, "containerd", 30)
    until(node.is_ready, "the node", 60)
    next_pod_runs(pods, node)
    assert survivors() == before
