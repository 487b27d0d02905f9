"""Case r: pods that are static, sized as a whole, resized in place, or have users of their own."""

import pytest
import yaml

from tests.realnode import versions
from tests.realnode.api import ApiError
from tests.realnode.asked import COUNTS, NAMESPACE, SLEEP, container, manifest
from tests.realnode.ground import NAME
from tests.realnode.kubelet import configured
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.case("r", "static pods, pods sized as a whole or anew, pods with users of their own"),
    pytest.mark.since(versions.INIT_AMOUNTS),
]
STATIC = "/etc/kubernetes/manifests"
STRATEGIC = "application/strategic-merge-patch+json"
USER_MAP = "/proc/self/uid_map"
CONTAINERS = "/usr/local/vgpu/containers"
OLDER = "older-runc"
"""A handler of the container runtime, with Debian's runc 1.1."""
FORGED = {"hami.io/vgpu-devices-allocated": "GPU-forged,NVIDIA,1,1:;"}


@pytest.mark.full
def test_a_static_pod_gets_no_device_and_an_event_in_its_namespace_says_why(daemon, pods, node):
    asked = manifest("static", container(count=1, memory=1000))
    del asked["spec"]["schedulerName"]
    node.enclosure.write(f"{STATIC}/static.yaml", yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **asked}))
    wanted = "a static pod cannot have devices"
    try:
        with configured(node, daemon, staticPodPath=STATIC):
            until(lambda: any(wanted in line for line in pods.told(f"static-{NAME}")), "the reason in an Event", 40)
    finally:
        node.path(f"{STATIC}/static.yaml").unlink()

    assert node.api.find_pod(NAMESPACE, f"static-{NAME}") is None
    name = pods.run(manifest("next", container(count=8, memory=80000)))
    pods.await_settled(name)


def test_a_pod_that_is_sized_as_a_whole_has_its_share(pods):
    whole = {"limits": {"cpu": "500m", "memory": "64Mi"}}
    name = pods.run(manifest("whole", container(count=1, memory=1100, cores=11), resources=whole))
    pods.await_settled(name)

    assert pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1100m"
    assert pods.get(name)["spec"]["resources"]["limits"] == whole["limits"]


def test_devices_for_a_pod_as_a_whole_are_refused_at_once(pods):
    with pytest.raises(ApiError, match=r"nvidia\.com/gpu.*supported values") as error:
        pods.submit(manifest("whole", container(), resources={"limits": {"nvidia.com/gpu": "1"}}))

    assert error.value.status == 422


@pytest.fixture
def resizable(pods):
    """A pod whose CPU is resized as it runs, and whose memory needs a restart of the container."""
    how = [("cpu", "NotRequired"), ("memory", "RestartContainer")]
    main = {
        **container(count=1, memory=1300, cores=13, limits={"cpu": "100m", "memory": "64Mi"}),
        "resizePolicy": [{"resourceName": what, "restartPolicy": restart} for what, restart in how],
    }
    name = pods.run(manifest("resized", main, restartPolicy="Always"))
    pods.await_settled(name)
    return name


def resize(node, name, what, **metadata):
    (main,) = node.api.pod(NAMESPACE, name)["spec"]["containers"]
    amounts = {**main["resources"]["limits"], **what}
    spec = {"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/resize"
    node.api.call("PATCH", path, {"metadata": metadata, "spec": spec}, STRATEGIC)


def size(pods, name):
    (status,) = pods.get(name)["status"]["containerStatuses"]
    return {what: status.get("resources", {}).get("limits", {}).get(what) for what in ("cpu", "memory")}


def test_a_pod_keeps_its_share_when_it_is_resized_in_place_or_with_a_restart(resizable, pods, node):
    before, share = pods.containers(resizable), pods.granted(resizable)

    resize(node, resizable, {"cpu": "200m"})
    until(lambda: size(pods, resizable)["cpu"] == "200m", "the new size", 30)
    assert pods.containers(resizable) == before

    resize(node, resizable, {"memory": "96Mi"})
    until(lambda: size(pods, resizable)["memory"] == "96Mi" and pods.restarts(resizable) == 1, "a restart", 60)
    pods.await_running(resizable)
    assert pods.granted(resizable) == share


def test_a_pods_share_is_neither_resized_nor_does_it_get_another_decision_on_the_way(resizable, pods, node):
    decided = pods.annotation(resizable, next(iter(FORGED)))

    for what in ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpumem": "2600"}):
        with pytest.raises(ApiError, match="only cpu and memory resources are mutable"):
            resize(node, resizable, what)
    resize(node, resizable, {"cpu": "150m"}, annotations=FORGED)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{resizable}/ephemeralcontainers"
    node.api.call("PATCH", path, {"metadata": {"annotations": FORGED}}, STRATEGIC)

    assert pods.annotation(resizable, next(iter(FORGED))) == decided


def test_a_pod_with_users_of_its_own_has_its_share_and_writes_its_usage(pods, node):
    """Its root is nobody outside, and still may write where HAMi-core counts, as the daemon's user may."""
    asked = container(count=1, memory=1400, cores=14, read=[USER_MAP], then=f"{COUNTS}\n{SLEEP}")
    name = pods.run(manifest("users", asked, hostUsers=False))
    pods.await_settled(name)

    seen = pods.granted(name)
    assert int(seen.files[USER_MAP].split()[1]) > 0
    assert (seen.env["CUDA_DEVICE_MEMORY_LIMIT_0"], seen.env["CUDA_DEVICE_SM_LIMIT"]) == ("1400m", "14")
    (used,) = node.path(CONTAINERS).glob(f"{pods.get(name)['metadata']['uid']}*/used")
    assert (used.stat().st_uid, used.stat().st_gid) == (0, 0)


def test_a_pod_with_users_of_its_own_is_told_where_the_runtime_cannot(pods, node):
    older = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": OLDER}, "handler": OLDER}
    node.api.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", older)

    asked = container(count=1, memory=1400, cores=14)
    name = pods.submit(manifest("users", asked, hostUsers=False, runtimeClassName=OLDER))

    wanted = "does not support user namespaces"
    until(lambda: any(wanted in line for line in pods.told(name)), "the kubelet's reason", 30)
    pods.await_settled(name)
