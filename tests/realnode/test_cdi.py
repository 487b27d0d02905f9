"""Case d: devices by CDI, named in an annotation or in a field that the kubelet passes on to containerd."""

import pytest

from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = pytest.mark.case("d", "devices by CDI, by the annotation and by the field, through containerd")
ALLOCATED = "hami.io/vgpu-devices-allocated"


@pytest.fixture(
    scope="module", params=["cdi-annotations", pytest.param("cdi-cri", marks=pytest.mark.since(versions.CDI_FIELD))]
)
def by_cdi(installed, request):
    """The daemon hands devices over by CDI while this module runs."""
    installed.configure(nvidia={"deviceListStrategy": [request.param]})
    machine = installed.machine()
    machine.make_nodes_real()
    (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())  # the simulated one is in Python
    yield
    installed.configure()


def cards(seen):
    return {path for path in seen.devices if path.removeprefix("/dev/nvidia").isdigit()}


def index(pods, name):
    """The number of the card that was decided for a pod of one; the simulated UUIDs begin with it."""
    return int(pods.annotation(name, ALLOCATED).removeprefix("GPU-")[:8])


def test_the_decided_device_is_in_the_container_and_no_other(by_cdi, pods):
    name = pods.run(manifest("by-cdi", container(count=1, memory=3000, cores=30)))

    seen = pods.granted(name)

    assert cards(seen) == {f"/dev/nvidia{index(pods, name)}"}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= seen.devices.keys()
    assert any(path.endswith("/libcuda.so.570.124.06") for path in seen.mounts)
    assert seen.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    pods.await_settled(name)


def test_a_pod_that_asks_for_all_by_a_variable_has_the_one_that_was_decided(by_cdi, pods):
    asked = {**container(count=1, memory=1000), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    name = pods.run(manifest("greedy", asked))

    assert cards(pods.granted(name)) == {f"/dev/nvidia{index(pods, name)}"}
