"""Case h: pods whose authors write what only a scheduler should write."""

import pytest

from hami_plugin.wire import keys
from tests.realnode.pods import container, manifest
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

    name = pods.create(manifest("stranger", container(count=1), schedulerName="default-scheduler"))

    refused(pods, name, "NotScheduledByHAMi")
    grown = {k for k, v in outcomes(daemon).items() if v > before.get(k, 0)}
    assert any("NotScheduledByHAMi" in k for k in grown)


def test_a_pod_with_another_pods_annotations_gets_neither_its_limits_nor_its_cache(pods, daemon):
    victim = pods.run(manifest("victim", container(count=1, memory=40000, cores=50)))
    pods.await_settled(victim)
    copied = {k: v for k, v in pods.get(victim)["metadata"]["annotations"].items() if k.startswith(OURS)}
    copied["hami.io/vgpu-devices-to-allocate"] = copied["hami.io/vgpu-devices-allocated"]
    copied[keys.BIND_PHASE] = "allocating"
    before = outcomes(daemon)

    name = pods.create(
        manifest("copycat", container(count=1, memory=100), annotations=copied, schedulerName="default-scheduler")
    )

    until(lambda: pods.phase(name) in ("Failed", "Pending") and pods.told(name), "a word about the copy", 40)
    assert pods.phase(name) != "Running"
    assert pods.phase(victim) == "Running"
    assert before is not None


def test_a_pod_that_asks_for_all_by_a_variable_and_for_no_device_gets_none(pods, node):
    greedy = {**container(), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    name = pods.create(manifest("greedy", greedy, schedulerName="default-scheduler"))
    pods.await_running(name)

    seen = pods.granted(name)

    assert (dict(seen.env), dict(seen.mounts), dict(seen.devices)) == ({"NVIDIA_VISIBLE_DEVICES": "all"}, {}, {})
