"""Case h, too: the chart's admission policies on a real API server refuse what is another's, and let ours through."""

import pytest

from hami_plugin.protocol import keys
from hami_plugin.scheduler.engine.admission import IGNORE
from tests.realnode import release, versions
from tests.realnode.api import ApiError
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.conftest import PROFILE
from tests.realnode.ground import NAME
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.case("h", "hostile pods get nothing that is another's"),
    pytest.mark.since(versions.POLICIES),
]
OTHER = "node-2"


def test_the_api_server_finds_no_wrong_type_in_the_policies(daemon, node):
    def checked():
        found = node.api.call("GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        ours = {one["metadata"]["name"]: one for one in found if one["metadata"]["name"].startswith(release.NAME)}
        seen = {
            one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"] for one in ours.values()
        }
        return ours if ours and seen == {True} else None

    until(checked, "the API server's check of the policies", 30)

    warnings = {
        name: one["status"].get("typeChecking", {}).get("expressionWarnings") for name, one in checked().items()
    }
    assert len(warnings) == 3
    assert set(warnings.values()) == {None}


def test_a_binding_brings_no_annotation_of_ours_to_its_pod(daemon, pods, node):
    """An API server copies the annotations of a Binding to the pod."""
    name = pods.create(manifest("bound", container(), schedulerName="nobody", labels=dict([IGNORE])))
    target = {"apiVersion": "v1", "kind": "Node", "name": NAME}
    forged = {"name": name, "annotations": {keys.BIND_PHASE: keys.PHASE_SUCCESS}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding"

    with pytest.raises(ApiError, match=r"only hami-plugin may write the annotations hami\.io/bind-phase") as error:
        node.api.call("POST", path, {"apiVersion": "v1", "kind": "Binding", "metadata": forged, "target": target})

    assert error.value.status == 403
    assert "nodeName" not in pods.get(name)["spec"]
    node.api.bind(NAMESPACE, name, NAME)
    pods.await_running(name)
    assert pods.annotation(name, keys.BIND_PHASE) == ""


@pytest.fixture
def other(node):
    """Another node's object."""
    node.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}})
    yield OTHER
    node.api.call("DELETE", f"/api/v1/nodes/{OTHER}")


def test_a_daemons_token_is_good_for_the_objects_of_its_own_node_only(daemon, node, other):
    pod = daemon.pod()["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    account = f"/api/v1/namespaces/{release.NAMESPACE}/serviceaccounts/{release.DAEMON}/token"
    token = node.api.call("POST", account, asked)["status"]["token"]
    api = node.api.as_bearer(token)

    with pytest.raises(ApiError, match=f'must not write what belongs to node ."{other}') as error:
        api.annotate_node(other, {"team/tried": "1"})

    assert error.value.status == 403
    assert api.annotate_node(NAME, {"team/tried": "1"})["metadata"]["annotations"]["team/tried"] == "1"
    api.annotate_node(NAME, {"team/tried": None})


HAMIS = "system:serviceaccount:kube-system:hami-scheduler"


@pytest.fixture
def hamis(daemon, node):
    """The API server as HAMi's own scheduler, which may do everything that RBAC can grant."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hami-scheduler"}}
    accounts = "/api/v1/namespaces/kube-system/serviceaccounts"
    node.api.call("POST", accounts, account)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = node.api.call("POST", f"{accounts}/hami-scheduler/token", asked)["status"]["token"]
    who = "--serviceaccount=kube-system:hami-scheduler"
    node.kubectl("create", "clusterrolebinding", "hamis", "--clusterrole=cluster-admin", who)
    yield node.api.as_bearer(token)
    node.kubectl("delete", "clusterrolebinding", "hamis")
    node.api.call("DELETE", f"{accounts}/hami-scheduler")
    release.Release(node=node).upgrade(release.values(PROFILE))


def test_hamis_scheduler_is_let_through_where_the_chart_exempts_it(hamis, pods, node):
    name = pods.create(manifest("decided", container(), schedulerName="nobody", labels=dict([IGNORE])))
    decision = {"hami.io/vgpu-devices-to-allocate": ";", keys.BIND_PHASE: keys.PHASE_ALLOCATING}

    def writes():
        try:
            hamis.annotate_pod(NAMESPACE, name, decision)
            hamis.annotate_node(NAME, {keys.NODE_LOCK: "2026-01-01T00:00:00Z"})
        except ApiError:
            return False
        return True

    with pytest.raises(ApiError, match="only hami-plugin may write"):
        hamis.annotate_pod(NAMESPACE, name, decision)
    release.Release(node=node).upgrade(release.values(PROFILE, policies={"exemptUsers": [HAMIS]}))

    until(writes, "the policy's exemption", 30)
    assert pods.annotation(name, keys.BIND_PHASE) == keys.PHASE_ALLOCATING
    hamis.annotate_node(NAME, {keys.NODE_LOCK: None})
    with pytest.raises(ApiError, match="only hami-plugin may write"):
        node.api.annotate_pod(NAMESPACE, name, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
