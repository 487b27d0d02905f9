"""Case n: of two schedulers one leads; when it is killed, the other goes on with what both have seen."""

import os
import signal

import pytest

from tests.realnode.asked import container, manifest
from tests.realnode.conftest import PROFILE
from tests.realnode.placing import Scheduler
from tests.realnode.processes import pid_of
from tests.realnode.release import Release, values
from tests.realnode.servers import until

pytestmark = pytest.mark.case("n", "the leading scheduler is killed, and another one goes on")
COUNT = 4
LEASE_S = 15  # of kube-scheduler: nobody leads before the killed one's has run out


@pytest.fixture(scope="module")
def two(installed, node):
    """Two schedulers; afterwards one again."""
    placing = Scheduler(node=node)
    Release(node=node).upgrade(values(PROFILE, scheduler={"replicas": 2}))
    placing.await_ready(2)
    yield placing
    Release(node=node).upgrade(values(PROFILE))
    placing.await_ready()


@pytest.fixture
def scheduler(two):
    return two


def test_pods_that_come_while_nobody_leads_are_placed_by_the_other_one_each_with_its_own(two, pods, record_property):
    full = pods.run(manifest("full", container(count=7, memory=80000, cores=100)))
    pods.await_settled(full)
    leader = two.leader()
    statuses = two.pods()[leader.partition("_")[0]]["status"]["containerStatuses"]
    (killed,) = [one["containerID"] for one in statuses if one["name"] == "kube-scheduler"]

    os.kill(pid_of(two.node, killed), signal.SIGKILL)
    limits = {f"later-{n}": f"{1000 + n}m" for n in range(COUNT)}
    for n, name in enumerate(limits):
        pods.submit(manifest(name, container(count=1, memory=1000 + n)))
    took = until(lambda: two.leader() != leader, "another leader", 4 * LEASE_S)

    pods.await_running(*limits, within_s=60)
    pods.await_settled(*limits)
    seen = {name: pods.granted(name).env for name in limits}
    assert {name: env["CUDA_DEVICE_MEMORY_LIMIT_0"] for name, env in seen.items()} == limits
    taken = set(pods.granted(full).env["NVIDIA_VISIBLE_DEVICES"].split(","))
    assert {env["NVIDIA_VISIBLE_DEVICES"] for env in seen.values()}.isdisjoint(taken)
    record_property("figures", f"another scheduler leads {took:.1f} s after the leading one was killed")
