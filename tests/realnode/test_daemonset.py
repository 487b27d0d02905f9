"""Case o: Helm takes everything back, and `daemonset.yaml` alone serves what another scheduler decides."""

import pytest
import yaml

from hami_plugin.protocol import keys
from hami_plugin.simulation.hardware import simulate_all
from hami_plugin.simulation.scheduler import SimulatedScheduler
from tests.realnode import readme, release
from tests.realnode.asked import container, manifest
from tests.realnode.conftest import PROFILE, SHARES
from tests.realnode.ground import NAME
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.test_rights import called, cluster_role
from tests.support.rights import DAEMON

pytestmark = pytest.mark.case("o", "helm uninstall leaves nothing, and daemonset.yaml alone serves another scheduler")
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


@pytest.fixture(scope="module")
def uninstalled(installed, node):
    before = of_the_release(node)
    release.Release(node=node).uninstall()
    until(lambda: not installed.pod(), "the end of the daemon", 60)
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
