"""Case j: the daemon is replaced while pods run and while others are being admitted."""

import threading

import pytest

from tests.realnode.pods import container, manifest

pytestmark = pytest.mark.case("j", "the daemon is replaced while pods run and are being admitted")
DURING = 6


def test_pods_that_arrive_while_the_daemon_is_replaced_run_with_their_own_limits(pods, daemon, node):
    old = pods.run(manifest("old", container(count=1, memory=900, cores=9)))
    pods.await_settled(old)
    before = pods.containers(old)
    replacing = threading.Thread(target=daemon.replace)
    names = {f"during-{n}": 1000 + n for n in range(DURING)}

    replacing.start()
    for name, memory in names.items():
        pods.submit(manifest(name, container(count=1, memory=memory, cores=5)))
    replacing.join(120)

    pods.await_running(*names, within_s=90)
    pods.await_settled(*names)
    assert not replacing.is_alive()
    assert {n: pods.granted(n).env["CUDA_DEVICE_MEMORY_LIMIT_0"] for n in names} == {
        name: f"{memory}m" for name, memory in names.items()
    }
    assert (pods.containers(old), pods.phase(old)) == (before, "Running")
