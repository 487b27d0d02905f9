"""Case q: a kubelet with a topology policy aligns devices and CPUs by the NUMA nodes that the daemon gives it."""

import pytest

from hami_plugin.protocol import keys
from hami_plugin.simulation.machines import load_machine
from tests.realnode.asked import container, manifest
from tests.realnode.conftest import PROFILE
from tests.realnode.kubelet import configured, numa_nodes
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("q", "devices and CPUs of one NUMA node, or the kubelet's reason and nothing held"),
]
WHOLE = {"enableNumaTopology": True, "deviceSplitCount": 1}
NODE_OF = {device.uuid: device.numa for device in load_machine(PROFILE).devices}
UUIDS = {node: [uuid for uuid, numa in NODE_OF.items() if numa == node] for node in (0, 1)}
CPUS = {"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicy": "static", "kubeReserved": {"cpu": "100m"}}
EXCLUSIVE = {"cpu": 1, "memory": "64Mi"}
USE = "nvidia.com/use-gpuuuid"


@pytest.fixture(scope="module")
def two_nodes(installed, node):
    """Whole cards, with their NUMA nodes; the machine seems to have both."""
    with numa_nodes(node):
        installed.configure(nvidia=WHOLE)
        yield
        installed.configure()


@pytest.fixture(scope="module")
def single(two_nodes, installed, node):
    """No container of several NUMA nodes. Of the two CPUs, the kubelet keeps the first; the other may be had alone."""
    with configured(node, installed, **CPUS):
        yield


@pytest.fixture
def restricted(single, installed, node):
    """No container of more NUMA nodes than it would need on an empty node."""
    with configured(node, installed, topologyManagerPolicy="restricted"):
        yield


@pytest.fixture
def daemon(single, installed):
    installed.await_ready()
    return installed


def nodes_of(pods, name):
    """The NUMA nodes of the cards that a pod has."""
    return {NODE_OF[uuid] for uuid in pods.granted(name).env["NVIDIA_VISIBLE_DEVICES"].split(",")}


def fails(pods, node, name, reason):
    until(lambda: pods.phase(name) == "Failed", f"the end of {name}", 40)
    assert pods.get(name)["status"]["reason"] == reason, pods.get(name)["status"]
    until(lambda: not node.annotation(keys.NODE_LOCK), "the release of the lock", 20)


def all_are_free(pods):
    name = pods.run(manifest("all", container(count=8)))
    pods.await_settled(name)
    pods.delete(name)


def test_cards_and_a_cpu_of_ones_own_come_from_one_numa_node(single, pods, node):
    asked = container(count=2, limits=EXCLUSIVE)
    name = pods.run(manifest("aligned", asked, annotations={USE: ",".join(UUIDS[1])}))
    pods.await_settled(name)

    assert nodes_of(pods, name) == {1}


def test_cards_of_another_numa_node_than_the_free_cpu_are_refused_with_both_nodes(single, pods, node):
    asked = container(count=1, limits=EXCLUSIVE)
    name = pods.submit(manifest("apart", asked, annotations={USE: UUIDS[0][0]}))

    fails(pods, node, name, "UnexpectedAdmissionError")
    wanted = "chose from NUMA node 1"
    until(lambda: any("DeviceMismatch" in line and wanted in line for line in pods.told(name)), "the reason", 20)


def test_more_cards_than_a_numa_node_has_fail_with_the_kubelets_reason_and_hold_nothing(single, pods, node):
    name = pods.submit(manifest("five", container(count=5)))

    fails(pods, node, name, "TopologyAffinityError")
    assert any("Topology locality" in line for line in pods.told(name)), pods.told(name)


def test_cards_that_an_empty_node_could_align_fail_and_hold_nothing(restricted, pods, node):
    taken = UUIDS[0][:3], UUIDS[1][:2]
    holders = [
        pods.run(manifest(f"holds-{n}", container(count=len(uuids)), annotations={USE: ",".join(uuids)}))
        for n, uuids in enumerate(taken)
    ]
    pods.await_settled(*holders)

    name = pods.submit(manifest("three", container(count=3)))

    fails(pods, node, name, "TopologyAffinityError")
    pods.delete(*holders)
    all_are_free(pods)
