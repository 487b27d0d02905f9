"""Case d: devices by CDI, named in an annotation that the kubelet passes on to containerd 1.7."""

import pytest

from tests.realnode.asked import container, manifest
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = pytest.mark.case("d", "devices by CDI annotation through containerd 1.7")
ALLOCATED = "hami.io/vgpu-devices-allocated"


@pytest.fixture(scope="module")
def by_cdi(installed):
    """The daemon hands devices over by CDI while this module runs."""
    installed.configure(nvidia={"deviceListStrategy": ["cdi-annotations"]})
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
