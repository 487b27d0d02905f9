"""Case h: pods whose authors write what only a scheduler should write."""

import pytest

from hami_plugin.protocol import keys
from hami_plugin.scheduler.engine.admission import IGNORE
from tests.realnode import versions
from tests.realnode.api import ApiError
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.conftest import PROFILE
from tests.realnode.ground import NAME
from tests.realnode.release import Release, values
from tests.realnode.servers import until

pytestmark = pytest.mark.case("h", "hostile pods get nothing that is another's")
OURS = ("hami.io/", "nvidia.com/")


def outcomes(daemon):
    return {k: v for k, v in daemon.metrics().items() if k.startswith("hami_plugin_allocations_total")}


def refused(pods, name, *reasons):
    """The pod has failed its admission, and its Events say one of these reasons."""
    until(lambda: pods.phase(name) == "Failed", f"the end of {name}", 40)
    until(lambda: any(r in line for line in pods.told(name) for r in reasons), f"the reason at {name}", 20)


def test_a_pod_that_another_scheduler_bound_is_refused_and_counted(pods, daemon):
    before = outcomes(daemon)

    name = pods.create(
        manifest("stranger", container(count=1), schedulerName="default-scheduler", labels=dict([IGNORE]))
    )

    refused(pods, name, "NotScheduledByHAMi")
    grown = {k for k, v in outcomes(daemon).items() if v > before.get(k, 0)}
    assert any("NotScheduledByHAMi" in k for k in grown)


@pytest.fixture(scope="module")
def unreserved(installed, node):
    """Anybody may write the scheduler's annotations, as on an API server without admission policies."""
    if not node.kubernetes.has_policies:
        yield
        return
    Release(node=node).upgrade(values(PROFILE, policies={"enabled": False}))
    until(lambda: not refuses(node, "tried"), "the end of the policies", 30)
    yield
    Release(node=node).upgrade(values(PROFILE))
    until(lambda: refuses(node, "tried"), "the policies to be in force again", 30)


def refuses(node, name):
    """Whether the API server keeps a reserved annotation from an author."""
    try:
        node.api.create_pod(manifest(name, container(), annotations={keys.BIND_PHASE: keys.PHASE_SUCCESS}))
    except ApiError as error:
        return error.status == 403
    node.api.delete_pod(NAMESPACE, name)
    return False


@pytest.fixture
def victim(pods):
    """Who holds half of a device."""
    return settled(pods, memory=40000, cores=50)


@pytest.fixture(params=[(), [container("early", then="exit 0")]], ids=["", "whom HAMi 2.10 would forget"])
def holder(pods, request):
    """Who holds so much of a device that there is not as much left."""
    return settled(pods, *request.param, memory=70000, cores=80)


def settled(pods, *inits, **limits):
    name = pods.run(manifest("victim", container(count=1, **limits), inits=inits))
    pods.await_settled(name)
    return name


def forged(pods, victim, **limits):
    """A pod that binds itself past every scheduler and webhook, with the annotations of the ``victim``."""
    copied = {k: v for k, v in pods.get(victim)["metadata"]["annotations"].items() if k.startswith(OURS)}
    copied |= {
        "hami.io/vgpu-devices-to-allocate": copied["hami.io/vgpu-devices-allocated"],
        keys.BIND_PHASE: "allocating",
    }
    past = {"nodeName": NAME, "labels": dict([IGNORE]), "annotations": copied}
    return pods.create(manifest("copycat", container(**limits), **past))


@pytest.mark.since(versions.POLICIES)
def test_with_the_charts_policies_a_pod_with_a_decision_of_its_author_is_refused_at_once(pods, victim):
    with pytest.raises(ApiError, match=r"only hami-plugin may write the annotations .*hami\.io/bind-phase") as error:
        forged(pods, victim, count=1)

    assert error.value.status == 403
    assert (pods.phase(victim), pods.restarts(victim)) == ("Running", 0)


def test_a_pod_with_another_pods_annotations_does_not_get_more_than_it_asks_for(unreserved, pods, daemon, victim):
    before = outcomes(daemon)

    name = forged(pods, victim, count=1, memory=100)

    refused(pods, name, "ExceedsRequest")
    grown = {k for k, v in outcomes(daemon).items() if v > before.get(k, 0)}
    assert any("ExceedsRequest" in k for k in grown)
    assert (pods.phase(victim), pods.restarts(victim)) == ("Running", 0)


def test_a_pod_with_the_decision_of_another_does_not_get_what_that_one_holds(unreserved, pods, daemon, holder):
    name = forged(pods, holder, count=1)

    refused(pods, name, "DeviceOvercommitted")
    assert any(f"default/{holder} holds 70000" in line for line in pods.told(name)), pods.told(name)
    assert (pods.phase(holder), pods.restarts(holder)) == ("Running", 0)


def test_a_pod_that_copies_a_decision_past_every_scheduler_has_nothing_of_its_owner(unreserved, pods, victim):
    """An author can write a decision for what the pod itself asks for; reserving the annotations is admission's."""
    before = pods.granted(victim)

    name = forged(pods, victim, count=1)

    pods.await_running(name)
    own = pods.granted(name)
    assert own.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] != before.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert pods.get(name)["metadata"]["uid"] in own.mounts["/usr/local/vgpu"].source
    assert pods.get(victim)["metadata"]["uid"] in before.mounts["/usr/local/vgpu"].source
    assert (pods.phase(victim), pods.restarts(victim)) == ("Running", 0)


def test_a_pod_that_asks_for_all_by_a_variable_and_for_no_device_gets_none(pods, node):
    greedy = {**container(), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    name = pods.create(manifest("greedy", greedy, schedulerName="default-scheduler"))
    pods.await_running(name)

    seen = pods.granted(name)

    assert (dict(seen.env), dict(seen.mounts), dict(seen.devices)) == ({"NVIDIA_VISIBLE_DEVICES": "all"}, {}, {})
