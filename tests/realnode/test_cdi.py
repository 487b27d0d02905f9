"""Case d: devices by CDI, named in an annotation or in a field that the kubelet passes on to containerd."""

import pytest

from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.late import late
from tests.realnode.release import QUICK
from tests.realnode.servers import until
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = pytest.mark.case("d", "devices by CDI, by the annotation and by the field, through containerd")
ALLOCATED = "hami.io/vgpu-devices-allocated"


NEWER = pytest.mark.since(versions.CDI_FIELD)
SPEC = "/run/cdi/hami-plugin_k8s.device-plugin.nvidia.com-gpu.json"


@pytest.fixture(
    scope="module",
    params=["cdi-annotations", *(pytest.param(one, marks=NEWER) for one in ("auto", "cdi-cri"))],
)
def by_cdi(installed, request):
    """The daemon hands devices over by CDI while this module runs. What starts is the runtime's affair alone."""
    runtime = {"runtimeConfigDir": "/etc/containerd"} if request.param == "auto" else {}
    quiet = {"health": QUICK, "identityCheck": "off"}  # else the daemon hears of each start first
    installed.configure(nvidia={"deviceListStrategy": [request.param]}, config=quiet, **runtime)
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


def test_a_container_whose_spec_was_removed_after_its_allocate_starts_and_the_spec_is_written_again(by_cdi, pods, node):
    """Where containerd misses it, the kubelet tries again."""
    waiting = late(pods, "late", container(count=1, memory=3000, cores=30))
    name, spec = waiting.name, node.path(SPEC)

    spec.unlink()
    waiting.arrive()

    until(spec.exists, "the spec", 20)
    pods.await_running(name, within_s=90)
    seen = pods.granted(name)
    assert cards(seen) == {f"/dev/nvidia{index(pods, name)}"}
    assert seen.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
