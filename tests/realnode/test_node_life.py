"""Case s: the node is drained, under pressure, tainted, deleted, shut down, and named anew."""

import contextlib
import os

import pytest
import yaml

from hami_plugin.protocol import keys
from tests.realnode import release, shares, versions
from tests.realnode.asked import container, manifest
from tests.realnode.conftest import SHARES
from tests.realnode.ground import NAME
from tests.realnode.kubelet import SETTINGS, configured, renamed
from tests.realnode.logind import logind
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.test_registration import REGISTER

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("s", "a node that is drained, under pressure, tainted, deleted, shut down, named anew"),
]
SIGNAL, MIB = "memory.available", 1 << 20
ANOTHER = "another-name"
SHUTDOWN = {"shutdownGracePeriod": "40s", "shutdownGracePeriodCriticalPods": "30s"}
TAINT = {"key": "team", "value": "other", "effect": "NoSchedule"}


def all_are_free(pods):
    name = pods.run(manifest("all", container(count=8, memory=80000, cores=100)), within_s=90)
    pods.await_settled(name)
    pods.delete(name)


def test_a_pod_that_is_drained_leaves_its_shares_and_the_daemon_stays(pods, node, daemon):
    name = pods.run(manifest("drained", container(count=8, memory=80000, cores=100), labels={"app": "drained"}))
    pods.await_settled(name)
    before = daemon.pod()["metadata"]["uid"]

    node.kubectl("drain", NAME, "--ignore-daemonsets", "--force", "--pod-selector=app=drained", "--timeout=30s")
    waits = pods.submit(manifest("waits", container(count=1, memory=1000)))
    until(lambda: any("unschedulable" in line for line in pods.told(waits)), "the reason", 30)
    node.kubectl("uncordon", NAME)

    pods.await_running(waits)
    pods.delete(waits)
    all_are_free(pods)
    assert daemon.pod()["metadata"]["uid"] == before


def test_a_pod_that_the_kubelet_evicts_leaves_its_shares_and_the_daemon_stays(pods, node, daemon):
    name = pods.run(manifest("evicted", container(count=8, memory=80000, cores=100)))
    pods.await_settled(name)
    before = daemon.pod()["metadata"]["uid"]

    almost_all = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // MIB - 256}Mi"
    soft = {"evictionSoft": {SIGNAL: almost_all}, "evictionSoftGracePeriod": {SIGNAL: "1s"}}
    with configured(node, daemon, **soft, evictionPressureTransitionPeriod="0s"):
        until(lambda: pods.phase(name) == "Failed", "the eviction", 60)
        assert pods.get(name)["status"]["reason"] == "Evicted"
        assert daemon.pod()["metadata"]["uid"] == before

    until(lambda: not node.api.node(NAME)["spec"].get("taints"), "the end of the pressure", 60)
    all_are_free(pods)


def test_a_node_that_was_deleted_comes_back_with_its_register_and_its_pods(pods, node, daemon):
    daemon.configure(tolerations=[{"operator": "Exists"}])  # before, as an administrator does who uses the taint
    name = pods.run(manifest("stays", container(count=1, memory=70000, cores=70)))
    pods.await_settled(name)
    before, kubelet = pods.containers(name), node.servers["kubelet"]

    kubelet.end()
    node.api.call("DELETE", f"/api/v1/nodes/{NAME}")
    with tainted(node):
        kubelet.start()
        until(lambda: node.api.call("GET", "/api/v1/nodes")["items"], "the node", 60)
        assert TAINT in node.api.node(NAME)["spec"]["taints"]
        node.kubectl("label", "node", NAME, "gpu=on")
        daemon.await_ready()
        until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", 60)
        until(lambda: node.annotation(REGISTER), "the register", 30)
    assert (pods.containers(name), pods.phase(name)) == (before, "Running")

    kept_out = pods.submit(manifest("kept-out", container(count=1, memory=1000)))
    until(lambda: any(TAINT["key"] in line for line in pods.told(kept_out)), "the taint in an Event", 30)
    tolerant = manifest("full", container(count=8, memory=30000), tolerations=[{"key": "team", "operator": "Exists"}])
    full = pods.submit(tolerant)
    until(lambda: any("CardInsufficientMemory" in line for line in pods.told(full)), "our reason in an Event", 30)
    pods.delete(name)
    pods.await_running(full, within_s=60)
    node.kubectl("taint", "node", NAME, f"{TAINT['key']}-")
    pods.await_running(kept_out, within_s=60)
    pods.await_settled(kept_out, full)
    pods.delete(kept_out, full)
    daemon.configure()


@contextlib.contextmanager
def tainted(node):
    """A kubelet that makes its node object anew gives it a taint. 1.20 has it in a flag."""
    path, kubelet = node.path(SETTINGS), node.servers["kubelet"]
    before, command = path.read_text(), kubelet.command
    if node.kubernetes.is_debians:
        kubelet.command = (*command, f"--register-with-taints={TAINT['key']}={TAINT['value']}:{TAINT['effect']}")
    else:
        path.write_text(yaml.safe_dump({**yaml.safe_load(before), "registerWithTaints": [TAINT]}))
    yield
    path.write_text(before)
    kubelet.command = command


def ended(pod):
    """When the last of its containers has ended, as its status says."""
    return max(one["state"]["terminated"]["finishedAt"] for one in pod["status"]["containerStatuses"])


@pytest.mark.since(versions.INIT_AMOUNTS)  # in 1.20 it is alpha, ends pods as "Shutdown", and refuses none
def test_a_node_that_is_shut_down_ends_pods_before_the_daemon_and_has_all_shares_when_it_is_back(
    pods, node, daemon, scheduler
):
    """As systemd tells it. What arrives meanwhile fails for the kubelet's reason, and holds nothing."""
    with logind(node) as machine, configured(node, daemon, **SHUTDOWN):
        machine.await_listener(60)
        assert machine.is_delayed()
        name = pods.run(manifest("ends", container(count=7, memory=80000, cores=100)))
        pods.await_settled(name)
        serving = daemon.pod()["metadata"]["name"]

        machine.shut_down()
        until(lambda: not node.is_ready(), "the node's status", 20)
        late = pods.create(manifest("late", container(), nodeName=NAME, schedulerName="nobody"))
        until(lambda: pods.phase(name) == pods.phase(late) == "Failed", "the end of the pods", 60)
        until(lambda: not machine.is_delayed(), "the kubelet to let go of the shutdown", 60)
        assert [pods.get(one)["status"]["reason"] for one in (name, late)] == ["Terminated", "NodeShutdown"]
        served = node.api.find_pod(release.NAMESPACE, serving)
        if served and served["status"]["phase"] == "Failed":  # its controller may have replaced it already
            assert ended(pods.get(name)) <= ended(served)

    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", 60)
    assert not node.annotation(keys.NODE_LOCK)
    scheduler.await_ready()
    pods.delete(name)
    all_are_free(pods)


@pytest.fixture
def another(node, daemon, scheduler):
    """The node has another name for a while; an administrator labels and deletes what there is of either."""

    def only(kept, gone):
        node.kubectl("label", "--overwrite", "node", kept, "gpu=on")
        node.kubectl("delete", "node", gone, "--ignore-not-found")
        left = ("--all-namespaces", f"--field-selector=spec.nodeName={gone}", "--force", "--grace-period=0")
        node.kubectl("delete", "pods", *left)
        daemon.await_ready()
        scheduler.await_ready()

    with renamed(node, ANOTHER) as other:
        yield other, lambda: only(ANOTHER, NAME)
    only(NAME, ANOTHER)


def test_a_node_with_another_name_serves_nothing_of_its_former_one_whose_traces_are_told(pods, node, daemon, request):
    left = pods.run(manifest("left", container(count=8, memory=80000, cores=100)))
    pods.await_settled(left)
    other, settle = request.getfixturevalue("another")
    node.kubectl("label", "node", ANOTHER, "gpu=on")
    until(lambda: other.allocatable("nvidia.com/gpu") == SHARES, "all shares under the new name", 90)
    until(lambda: other.annotation(REGISTER), "the register under the new name", 30)
    assert not shares.held(other)

    until(lambda: release.clean(node, NAME, "--dry-run")[0] == 0, "the loss of the former name", 90, every_s=2)
    status, said = release.clean(node, NAME, "--dry-run")
    assert (status, said.startswith(f"{NAME}: would remove "), REGISTER in said) == (0, True, True), said
    assert release.clean(node, ANOTHER)[0] == 1
    status, said = release.clean(node, NAME)
    if node.kubernetes.has_policies:  # the administrator is not exempt, and deletes the node
        assert (status, "admissionPolicies.exemptUsers" in said) == (1, True), said
    else:
        assert (status, node.annotation(REGISTER)) == (0, ""), said

    settle()
    pods.delete(left)
    anew = Pods(node=other, place=pods.place)
    all_are_free(anew)
    anew.clear()
