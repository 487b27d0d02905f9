"""Case g: many pods at once on one node, each with limits of its own."""

import time

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.servers import until
from tests.support.scale import sized

COUNT = sized(20, 50)
EXPIRY_S = 300  # of the node lock: nothing may wait for it
pytestmark = pytest.mark.case("g", f"{COUNT} pods in a burst, each with its own limits")


def plain(pods):
    """Return after how many seconds as many pods without devices run."""
    before, start = containers(pods.node), time.monotonic()
    names = [pods.create(manifest(f"plain-{n}", container(), schedulerName="default-scheduler")) for n in range(COUNT)]
    pods.await_running(*names, within_s=EXPIRY_S)
    took = time.monotonic() - start
    pods.delete(*names)
    until(lambda: containers(pods.node) <= before, "the end of their containers", EXPIRY_S)
    return took


def containers(node):
    return len(node.run("ctr", "--namespace=k8s.io", "containers", "list", "--quiet", deadline_s=60).split())


def test_each_pod_of_a_burst_has_exactly_its_own_limits_and_none_fails(pods, daemon, record_property):
    without = plain(pods)
    limits = {f"burst-{n}": (1000 + 7 * n, 1 + n % 10) for n in range(COUNT)}
    start = time.monotonic()

    for name, (memory, cores) in limits.items():
        pods.submit(manifest(name, container(count=1, memory=memory, cores=cores)))
    pods.await_running(*limits, within_s=EXPIRY_S - 60)
    took = time.monotonic() - start

    pods.await_settled(*limits)
    seen = {name: pods.granted(name).env for name in limits}
    has = {n: (e["CUDA_DEVICE_MEMORY_LIMIT_0"], e["CUDA_DEVICE_SM_LIMIT"]) for n, e in seen.items()}
    record_property("figures", f"{COUNT} pods run after {took:.1f} s; as many without devices after {without:.1f} s")
    assert has == {name: (f"{memory}m", str(cores)) for name, (memory, cores) in limits.items()}
    assert {name: e["NVIDIA_VISIBLE_DEVICES"] for name, e in seen.items()} == {
        name: pods.annotation(name, "hami.io/vgpu-devices-allocated").partition(",")[0] for name in limits
    }
    assert [name for name in limits if pods.restarts(name)] == []
