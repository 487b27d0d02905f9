"""Case b: a pod of every shape starts with exactly what was decided for it."""

import json
import os
import signal

import grpc
import pytest

from hami_plugin.kubelet.api.podresources_pb2 import ListPodResourcesRequest
from hami_plugin.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from hami_plugin.kubelet.holders import kept_in
from hami_plugin.model.device import physical_id
from hami_plugin.protocol import keys
from hami_plugin.scheduler.engine.admission import IGNORE
from hami_plugin.simulation.scheduler import POLICY, TOPOLOGY_AWARE
from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.servers import until

pytestmark = pytest.mark.case("b", "pods of every shape start with exactly what was decided for them")
RESOURCE = "nvidia.com/gpu"
ALLOCATED = "hami.io/vgpu-devices-allocated"


def decided(pods, name):
    """Per container, the grants that the scheduler wrote: uuid, MiB, percent."""
    text = pods.annotation(name, ALLOCATED)
    parts = text.split(";")
    return [
        [(uuid, int(memory), int(cores)) for uuid, _, memory, cores, *_ in (g.split(",") for g in part.split(":") if g)]
        for part in parts[:-1]
    ]


def has(seen, grants):
    """The container has the grants' environment and mounts, no device, and nothing else."""
    in_order = sorted(grants)  # NVIDIA's libraries count the cards in this order, whatever the decision's
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{n}": f"{memory}m" for n, (_, memory, _) in enumerate(in_order)}
    cache = seen.env.get("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")
    assert cache.startswith("/usr/local/vgpu/")
    assert seen.env == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuid for uuid, _, _ in in_order),
        **limits,
        "CUDA_DEVICE_SM_LIMIT": str(grants[0][2]),
        "LIBCUDA_LOG_LEVEL": "1",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache,
    }
    assert {path: mount.read_only for path, mount in seen.mounts.items()} == {
        "/usr/local/vgpu": False,
        "/usr/local/vgpu/libvgpu.so": True,
        "/tmp/vgpulock": False,
        "/etc/ld.so.preload": True,
    }
    assert seen.devices == {}


def held(node, name):
    """Per container, the devices that the kubelet's PodResources name."""
    socket = node.path("/var/lib/kubelet/pod-resources/kubelet.sock")
    with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        answer = PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=20)
    (found,) = [pod for pod in answer.pod_resources if (pod.namespace, pod.name) == ("default", name)]
    return {
        one.name: sorted(physical_id(i) for d in one.devices if d.resource_name == RESOURCE for i in d.device_ids)
        for one in found.containers
    }


def test_a_shared_pod_has_its_memory_and_cores(pods, node, daemon):
    name = pods.run(manifest("shared", container(count=1, memory=3000, cores=30)))

    pods.await_settled(name)

    ((uuid, memory, cores),) = decided(pods, name)[0]
    assert (memory, cores) == (3000, 30)
    has(pods.granted(name), [(uuid, 3000, 30)])


def test_two_containers_of_a_pod_have_each_its_own(pods):
    pair = manifest("pair", container("one", count=1, memory=1000, cores=10), container("two", count=2, memory=2000))
    name = pods.run(pair)

    pods.await_settled(name)

    one, two = decided(pods, name)
    has(pods.granted(name, "one"), one)
    has(pods.granted(name, "two"), two)


def test_an_init_container_has_its_own_and_the_container_after_it_has_its_own(pods):
    """Kubelet 1.20 refuses an init container with memory or cores, which the webhook would add: so it is left out."""
    init = container("prepare", count=1, then="true")
    left_out = dict([IGNORE])
    name = pods.run(manifest("prepared", container(count=1, memory=2000, cores=20), inits=[init], labels=left_out))

    pods.await_settled(name)

    first, second = decided(pods, name)
    has(pods.granted(name, "prepare"), first)
    has(pods.granted(name), second)


@pytest.mark.since(versions.INIT_AMOUNTS)
def test_an_init_container_has_its_own_memory_and_cores(pods):
    init = container("prepare", count=1, memory=1000, cores=10, then="true")
    name = pods.run(manifest("measured", container(count=1, memory=2000, cores=20), inits=[init]))

    pods.await_settled(name)

    first, second = decided(pods, name)
    assert [grant[1:] for grant in (*first, *second)] == [(1000, 10), (2000, 20)]
    has(pods.granted(name, "prepare"), first)
    has(pods.granted(name), second)


@pytest.mark.since(max(versions.SIDECARS, versions.INIT_AMOUNTS))
def test_a_native_sidecar_an_init_container_and_a_container_have_each_its_own_also_after_restarts(pods, node):
    sidecar = {**container("aside", count=1, memory=1200, cores=12), "restartPolicy": "Always"}
    init = container("prepare", count=1, memory=700, cores=7, then="true")
    asked = manifest("native", container(count=1, memory=1700, cores=17), inits=[sidecar, init], restartPolicy="Always")
    name = pods.run(asked)
    pods.await_settled(name)
    grants = dict(zip(("aside", "prepare", "main"), decided(pods, name), strict=True))

    for one, amounts in (("aside", (1200, 12)), ("prepare", (700, 7)), ("main", (1700, 17))):
        assert [grant[1:] for grant in grants[one]] == [amounts]
        has(pods.granted(name, one), grants[one])
    assert held(node, name) == {one: sorted(uuid for uuid, _, _ in grants[one]) for one in ("aside", "main")}

    for one in ("aside", "main"):
        before = pods.containers(name)
        os.kill(pods.pid(name, one), signal.SIGKILL)
        until(lambda one=one, before=before: pods.containers(name)[one] != before[one], f"another {one}", 60)
        pods.await_running(name)
        has(pods.granted(name, one), grants[one])


def test_a_sidecar_before_the_one_that_asks_has_nothing(pods):
    name = pods.run(manifest("aside", container("sidecar"), container(count=1, memory=1500, cores=15)))

    pods.await_settled(name)

    nothing, grants = decided(pods, name)
    assert nothing == []
    has(pods.granted(name), grants)
    seen = pods.granted(name, "sidecar")
    assert (dict(seen.env), dict(seen.mounts), dict(seen.devices)) == ({}, {}, {})


def test_a_topology_pod_of_four_has_four_whole_devices(pods):
    asked = manifest("four", container(count=4), annotations={POLICY: TOPOLOGY_AWARE})
    name = pods.run(asked)

    pods.await_settled(name)

    (grants,) = decided(pods, name)
    assert len({uuid for uuid, _, _ in grants}) == 4
    has(pods.granted(name), grants)


def test_the_kubelets_pod_resources_say_what_was_decided(pods, node):
    name = pods.run(manifest("listed", container("one", count=1, memory=1000), container("two", count=2, memory=900)))
    pods.await_settled(name)

    one, two = decided(pods, name)
    assert held(node, name) == {"one": sorted(uuid for uuid, _, _ in one), "two": sorted(uuid for uuid, _, _ in two)}


def test_each_answer_in_the_kubelets_checkpoint_says_whom_it_was_made_for(pods, node):
    name = pods.run(manifest("checked", container("one", count=1, memory=1000), container("two", count=1, memory=900)))
    uid = pods.get(name)["metadata"]["uid"]

    text = node.path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").read_bytes()

    own = {kept.container: kept.answered_for for kept in kept_in(text, RESOURCE) if kept.uid == uid}
    assert own == {"one": f"{uid}/one", "two": f"{uid}/two"}
    assert json.loads(text)["Checksum"]
    assert pods.annotation(name, keys.BIND_PHASE)
