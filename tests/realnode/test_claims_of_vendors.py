"""Case v, too: devices of other vendors by ResourceClaims, beside NVIDIA's by the device plugin, from one daemon."""

import pytest

from hami_plugin.dra.slices import driver_name
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.claims import Claims, request
from tests.realnode.conftest import PROFILE
from tests.realnode.daemon import PERMITTED
from tests.realnode.ground import NAME
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.runtimes.machines import MACHINES

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: shared, whole, and through every restart"),
    pytest.mark.since(versions.CLAIMS),
]
PROFILES = (
    *("mi300x-8", "ascend-910b3-8", "aws-trn1-32xlarge", "biren-br106-8", "cambricon-mlu590-8"),
    *("gaudi3-8", "hygon-z100-4", "iluvatar-biv100-4", "kunlun-p800-8", "metax-c500-8", "mthreads-s4000-8"),
)
VENDORS = {vendor_of(load_machine(profile)).name: profile for profile in PROFILES}
INSTANCE = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
AMD_CORE = "/usr/local/vgpu/libamvgpu.so"


@pytest.fixture(scope="module")
def all_vendors(installed, node):
    """The daemon with a machine of each vendor; afterwards it has the first one alone again."""
    node.kubectl("label", "--overwrite", "node", NAME, *(f"{key}={value}" for key, value in INSTANCE.items()))
    node.path(AMD_CORE).write_text("stands for AMD's library")
    installed.serve((PROFILE, *PROFILES), **{vendor: {"frontEnd": "dra"} for vendor in VENDORS})
    yield installed
    node.kubectl("label", "node", NAME, *(f"{key}-" for key in INSTANCE))
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 60)


@pytest.fixture
def claims(all_vendors, node, scheduler):
    made = Claims(node=node, pods=Pods(node=node, place=scheduler.place))
    yield made
    made.clear()


def test_a_whole_device_of_every_vendor_is_in_its_pod_and_no_other_device(claims, node, all_vendors):
    for vendor in VENDORS:
        until(lambda vendor=vendor: claims.devices(driver_name(vendor)), f"slices of {vendor}", 60)
    given = {}
    for vendor in VENDORS:
        driver = driver_name(vendor)
        last = claims.uuids(driver)[-1]
        given[claims.create(f"whole-{vendor}", request(driver=driver, uuid=last))] = last
    gpu = claims.pods.submit(manifest("by-plugin", container(count=1, memory=3000, cores=30)))

    claims.pods.await_running(*given, gpu, within_s=120)

    for name, uuid in given.items():
        own, others = claims.nodes(uuid)
        seen = claims.pods.granted(name)
        assert seen.devices.keys() == own, name
        assert not seen.devices.keys() & others, name
        assert {one.reading for one in seen.devices.values()} <= PERMITTED, name
    assert claims.pods.granted(gpu).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert node.allocatable("nvidia.com/gpu") == 80
    allocatable = node.api.node(NAME)["status"]["allocatable"]  # with a 0 for what a former daemon had
    assert [name for name, count in allocatable.items() if "/" in name and "nvidia" not in name and count != "0"] == []
    claims.end(*given)
    claims.await_free()


@pytest.mark.parametrize("machine", [one for one in MACHINES if one.profile in PROFILES], ids=lambda one: one.profile)
def test_a_container_has_what_the_vendors_documents_say(claims, machine):
    driver = driver_name(machine.vendor)
    uuid = claims.uuids(driver)[1]
    name = claims.run("documented", request(driver=driver, uuid=uuid))

    seen = claims.pods.granted(name)

    known = {card.split("AWS")[-1]: card for card in machine.devices}
    assert seen.devices.keys() == machine.received([known[uuid.split("AWS")[-1]]]).keys()
    assert seen.env.items() >= {k: v for k, v in machine.env.items() if "VISIBLE" not in k}.items()


@pytest.mark.since(versions.CONSUMABLE)
def test_two_pods_share_an_amd_gpu_each_with_its_own_limits_and_a_third_waits(claims):
    driver = driver_name("amd")
    uuid = claims.uuids(driver)[3]
    first = claims.run("first", request(driver=driver, uuid=uuid, memory="16384Mi", cores="25"))
    second = claims.run("second", request(driver=driver, uuid=uuid, memory="32768Mi", cores="50"))
    claims.create("third", request(driver=driver, uuid=uuid, memory="1Mi", cores="26"))

    claims.await_waiting("third")
    masks = {}
    for name, memory, units in ((first, "16384m", 76), (second, "32768m", 152)):
        env = claims.pods.granted(name).env
        assert env["HIP_DEVICE_MEMORY_LIMIT"] == memory
        begin, _, end = env["HSA_CU_MASK"].removeprefix("0:").partition("-")
        masks[name] = set(range(int(begin), int(end) + 1))
        assert len(masks[name]) == units
    assert not masks[first] & masks[second]
