"""Case v, too: pods that ask by limits, to which the webhook gives claims."""

import pytest

from hami_plugin.dra.conversion import CLAIMED
from tests.realnode import versions
from tests.realnode.api import ApiError
from tests.realnode.asked import NAMESPACE, SCHEDULER, container, manifest
from tests.realnode.claims import GROUP, OWN, STOCK, Claims
from tests.realnode.conftest import PROFILE, SHARES
from tests.realnode.placing import Scheduler
from tests.realnode.pods import Pods
from tests.realnode.release import Release, values
from tests.realnode.servers import until
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: shared, whole, and through every restart"),
    pytest.mark.since(versions.CONSUMABLE),
]
CLAIM, WAIT_S = "hami-nvidia", 90
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"


@pytest.fixture(scope="module")
def by_claims(installed, node):
    """While this module runs, cards go by claims, and the webhook makes them of limits."""
    installed.await_ready()
    scheduler = Scheduler(node=node)
    before = set(scheduler.pods())
    both = values(PROFILE, {"nvidia": {"frontEnd": "dra"}}, {"claimVendors": ["nvidia"]})
    Release(node=node).upgrade(both)
    until(lambda: not before & set(scheduler.pods()), "another scheduler", WAIT_S)
    scheduler.await_ready()
    machine = installed.machine()
    machine.make_nodes_real()
    (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
    yield installed
    before = set(scheduler.pods())
    installed.configure()
    until(lambda: not before & set(scheduler.pods()), "another scheduler", WAIT_S)
    scheduler.await_ready()
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", WAIT_S)


@pytest.fixture
def claims(by_claims, node):
    by_claims.await_ready()
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    until(made.devices, "cards in the slices", WAIT_S)
    yield made
    made.clear()


def asked(name, *, scheduler=STOCK, **amounts):
    return manifest(name, container(**amounts), schedulerName=scheduler, terminationGracePeriodSeconds=1)


def limits(claims, name):
    env = claims.pods.report(name).env
    return env.get(MEMORY_LIMIT), env.get(CORE_LIMIT)


def templates(node):
    return {one["metadata"]["name"]: one for one in node.api.call("GET", f"{OWN}/resourceclaimtemplates")["items"]}


def test_unchanged_pods_have_their_limits_by_claims_of_one_template_that_the_class_owns(claims, node):
    first = claims.pods.create(asked("first", count=1, memory=3000, cores=30))
    second = claims.pods.create(asked("second", count=1, memory=3000, cores=30, scheduler=SCHEDULER))
    claims.pods.await_running(first, second)

    assert limits(claims, first) == limits(claims, second) == ("3000m", "30")
    (pod, own) = (claims.pods.get(first), claims.of(first))
    (listed,) = pod["spec"]["resourceClaims"]
    template = templates(node)[listed["resourceClaimTemplateName"]]
    (owner,) = template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("DeviceClass", "nvidia.hami.io")
    assert owner["uid"] == node.api.call("GET", f"{GROUP}/deviceclasses/nvidia.hami.io")["metadata"]["uid"]
    assert claims.pods.get(second)["spec"]["resourceClaims"] == [listed]
    assert own["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    assert claims.results(first)[0]["consumedCapacity"] == {"memory": "3000Mi", "cores": "30", "slots": "1"}

    claims.end(first, second)
    until(lambda: claims.find(own["metadata"]["name"]) is None, "the end of the claim", WAIT_S)
    claims.await_free()


def test_quotas_hold_pods_with_claims_and_what_they_count_for_cannot_be_changed(claims, node):
    hard = {"limits.nvidia.com/gpumem": "5000"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "own"}, "spec": {"hard": hard}}
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    node.api.call("POST", path, quota)
    try:
        one = claims.pods.create(asked("one", count=1, memory=3000, cores=30))
        until(lambda: refusal(claims, asked("two", count=1, memory=3000)), "the quota's word", WAIT_S)
        assert "exceeding resource quota" in refusal(claims, asked("two", count=1, memory=3000))
        claims.pods.await_running(one)
        with pytest.raises(ApiError, match=CLAIMED):
            node.api.annotate_pod(NAMESPACE, one, {CLAIMED: None})
    finally:
        node.api.call("DELETE", f"{path}/own")
    claims.end(one)
    claims.await_free()


def refusal(claims, pod):
    """What the API server says against the pod; empty where it takes it, and then it is gone again."""
    try:
        claims.node.api.create_pod(pod)
    except ApiError as error:
        return str(error)
    claims.end(pod["metadata"]["name"])
    return ""
