"""Case o: Helm takes everything back, and `daemonset.yaml` alone serves what another scheduler decides."""

import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
import yaml

from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import NodeLock, render_lock
from hami_plugin.simulation.hardware import simulate_all
from hami_plugin.simulation.scheduler import SimulatedScheduler
from tests.realnode import readme, release
from tests.realnode.api import ApiError
from tests.realnode.asked import container, manifest
from tests.realnode.conftest import PROFILE, SHARES
from tests.realnode.ground import NAME
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.test_registration import REGISTER
from tests.realnode.test_rights import called, cluster_role
from tests.support.rights import DAEMON

pytestmark = pytest.mark.case("o", "helm uninstall leaves nothing, and daemonset.yaml alone serves another scheduler")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FILE = readme.ROOT / "daemonset.yaml"
GRACE_S = 60  # kube-scheduler 1.20 does not heed SIGTERM; the kubelet kills it after 30
WIDE = (
    *("rbac.authorization.k8s.io/v1/clusterroles", "rbac.authorization.k8s.io/v1/clusterrolebindings"),
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
)
POLICIES = tuple(f"admissionregistration.k8s.io/v1/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
OWN = ("v1/secrets", "v1/configmaps", "v1/services", "v1/serviceaccounts", "v1/pods", "apps/v1/daemonsets")
OWN += ("apps/v1/deployments", "rbac.authorization.k8s.io/v1/roles", "rbac.authorization.k8s.io/v1/rolebindings")


def of_the_release(node):
    """The names of all objects that the release has in the cluster."""
    places = [f"/apis/{kind}" for kind in (*WIDE, *(POLICIES if node.kubernetes.has_policies else ()))]
    for kind in OWN:
        group, _, plural = kind.rpartition("/")
        places.append(f"/{'api' if group == 'v1' else 'apis'}/{group}/namespaces/{release.NAMESPACE}/{plural}")
    items = [(place, one) for place in places for one in node.api.call("GET", place)["items"]]
    return {(place, one["metadata"]["name"]) for place, one in items if release.NAME in one["metadata"]["name"]}


def described(node):
    """What `kubectl get node` shows of a node's labels, annotations and taints."""
    found = json.loads(node.kubectl("get", "node", NAME, "-o", "json"))
    return {
        **{part: found["metadata"][part] for part in ("labels", "annotations")},
        "taints": found["spec"].get("taints"),
    }


@pytest.fixture(scope="module")
def marked(installed, node):
    """The node with all that is written on it while the release is there."""
    until(lambda: node.annotation(REGISTER), "the register", 30)
    return described(node)


@pytest.fixture(scope="module")
def uninstalled(marked, installed, node):
    before = of_the_release(node)
    release.Release(node=node).uninstall()
    return before


def simulated(document):
    """The document, with a simulated machine for the daemon: all that is changed in the file."""
    if document["kind"] == "DaemonSet":
        pod = document["spec"]["template"]["spec"]
        (main,) = pod["containers"]
        main["args"] += [f"--simulate={PROFILE}", f"--simulation-dir={release.SIMULATION}"]
        main["volumeMounts"].append({"name": "simulation", "mountPath": release.SIMULATION})
        pod["volumes"].append({"name": "simulation", "hostPath": {"path": release.SIMULATION}})
    return document


@pytest.fixture(scope="module")
def alone(uninstalled, installed, node):
    """The daemon, by the file."""
    found = [simulated(document) for document in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))]
    node.enclosure.write("/daemonset.yaml", yaml.safe_dump_all(found))
    node.kubectl("apply", "--filename=daemonset.yaml")
    installed.await_ready()
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", 60)
    return installed


@pytest.fixture
def pods(alone, node, tmp_path):
    """Placed as HAMi's scheduler does it, with HAMi's annotations and lock."""
    (machine,) = simulate_all(PROFILE, tmp_path)
    families = machine.vendor.families(machine.vendor.settings.model_validate(machine.settings))
    made = Pods(node=node, place=SimulatedScheduler(node.api, NAME, families, dict).place)
    yield made
    made.clear()


def locked(node):
    """A scheduler has died while it held the lock. The policies refuse that, until the API server has lost them."""
    with suppress(ApiError):
        return node.api.annotate_node(NAME, {keys.NODE_LOCK: render_lock(NodeLock(time=LONG_AGO))})


def test_the_command_that_follows_leaves_the_node_as_it_was(uninstalled, marked, node, record_property):
    """Typed at once: the daemon is about to end."""
    until(lambda: locked(node), "the lock", 20)

    status, said = release.clean(node, "--all", "--wait", "60")

    ours = {key for key in marked["annotations"] if "hami" in key} | {keys.NODE_LOCK}
    removed = set(said.partition(f"{NAME}: removed ")[2].partition("\n")[0].split(", "))
    assert status == 0, said
    assert {REGISTER, keys.NODE_LOCK} <= removed <= ours, said  # the scheduler may end a handshake first
    kept = {key: text for key, text in marked["annotations"].items() if key not in ours}
    assert described(node) == {**marked, "annotations": kept}
    assert [key for key in (*kept, *marked["labels"]) if "hami" in key] == []
    record_property("figures", f"node clean removed {', '.join(sorted(removed))}; no label, lock or taint is left")


def test_helm_leaves_nothing_of_the_release_in_the_cluster(uninstalled, node):
    assert len(uninstalled) > len(WIDE)
    assert any(place.endswith(POLICIES) for place, _ in uninstalled) == node.kubernetes.has_policies
    try:
        until(lambda: not of_the_release(node), "nothing to be left", GRACE_S)
    except TimeoutError:
        assert of_the_release(node) == set()


def test_the_daemon_of_the_file_serves_what_another_scheduler_decided(alone, pods, node):
    name = pods.run(manifest("shared", container(count=1, memory=3000, cores=30), schedulerName="another"))

    pods.await_settled(name)
    seen = pods.granted(name).env
    assert (seen["CUDA_DEVICE_MEMORY_LIMIT_0"], seen["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "30")
    assert pods.annotation(name, keys.BIND_PHASE) == keys.PHASE_SUCCESS


def test_its_account_has_the_same_rights(alone, node):
    assert cluster_role(node, release.DAEMON) == called(DAEMON)
