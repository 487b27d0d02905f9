"""Case k: two vendors on one node, served by one daemon."""

from dataclasses import replace

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.conftest import PROFILE
from tests.realnode.pods import Pods
from tests.realnode.servers import until

pytestmark = pytest.mark.case("k", "two vendors on one node")
OTHER = "ascend-910b3-8"
DROPPING = range(26, 36)
"""The minor versions of kubelets that drop a daemon for some milliseconds when its predecessor ends."""
COUNT, MEMORY = "huawei.com/Ascend910B3", "huawei.com/Ascend910B3-memory"


@pytest.fixture(scope="module")
def both(installed, node):
    """The daemon with both machines; afterwards it has the first one alone again."""
    two = replace(installed, profile=f"{PROFILE},{OTHER}")
    two.configure()
    if node.kubernetes.minor in DROPPING:
        until(lambda: two.pods_there() == 1, "the end of the former daemon", 60)
    yield two
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 60)


@pytest.fixture
def pods(both, node, scheduler):
    made = Pods(node=node, place=scheduler.place)
    yield made
    made.clear()


def test_a_pod_of_each_vendor_runs_with_its_own_variables(both, pods, node):
    until(lambda: node.allocatable(COUNT) and node.allocatable("nvidia.com/gpu") == 80, "both offers", 60)

    first = pods.run(manifest("first", container(count=1, memory=3000, cores=30)))
    second = pods.run(manifest("second", container(limits={COUNT: 1, MEMORY: 8000})))

    pods.await_settled(first, second)
    one, other = pods.granted(first), pods.granted(second)
    assert one.env["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    assert "ASCEND_VISIBLE_DEVICES" not in one.env
    assert other.env["ASCEND_VISIBLE_DEVICES"].isdigit()
    assert "NVIDIA_VISIBLE_DEVICES" not in other.env
